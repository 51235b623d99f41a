// What bfp does with vectors of the level: rounding, shifts and sums across lanes, and codes packed into words.
#pragma once
#include <type_traits>
#include <utility>
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "../bfp.h"
#include "real.h"

namespace compcoll {
namespace CC_LEVEL {
namespace bfp {

#if defined(__AVX512F__)
inline vec<int32_t, 16> to_integers(vec<float, 16> v) {
  return (vec<int32_t, 16>)_mm512_cvtps_epi32((__m512)v);
}
#endif
#if defined(__AVX2__)
inline vec<int32_t, 8> to_integers(vec<float, 8> v) { return (vec<int32_t, 8>)_mm256_cvtps_epi32((__m256)v); }
#endif
#if defined(__SSE2__)
inline vec<int32_t, 4> to_integers(vec<float, 4> v) { return (vec<int32_t, 4>)_mm_cvtps_epi32((__m128)v); }
inline int32_t to_integers(float v) { return _mm_cvtss_si32(_mm_set_ss(v)); }
#elif defined(__aarch64__)
inline vec<int32_t, 4> to_integers(vec<float, 4> v) {
  return (vec<int32_t, 4>)vcvtnq_s32_f32((float32x4_t)v);
}
inline int32_t to_integers(float v) { return vcvtns_s32_f32(v); }
#else
inline int32_t to_integers(float v) { return int32_t(__builtin_rintf(v)); }
inline vec<int32_t, 4> to_integers(vec<float, 4> v) {
  vec<int32_t, 4> q;
  for (int i = 0; i < 4; i++) q[i] = to_integers(v[i]);
  return q;
}
#endif
template <class V, int n = sizeof(V) / 8,
          class = typename std::enable_if<std::is_same<V, vec<double, n>>::value && n != 1>::type>
inline vec<int64_t, n> to_integers(V v) {
  return (vec<int64_t, n>)nearest_by_sum<V, vec<uint64_t, n>>(v);
}
inline int64_t to_integers(double v) { return int64_t(nearest_by_sum<double, uint64_t>(v)); }

template <class S>
inline auto to_values(S q) {
  using I = typename std::remove_reference<decltype(q[0])>::type;
  constexpr int n = sizeof(S) / sizeof(I);
  if constexpr (sizeof(I) == 4) return __builtin_convertvector(q, vec<float, n>);
  else return value_by_sum<vec<double, n>, vec<uint64_t, n>>((vec<uint64_t, n>)q);
}
inline float to_values(int32_t q) { return float(q); }
inline double to_values(int64_t q) { return value_by_sum<double, uint64_t>(uint64_t(q)); }

// Vectors of F, n values in each, and of the numbers of tiles that are looked at side by side.
template <class F>
struct Vectors {
  using Word = typename Form<F>::Word;
  using Signed = typename Form<F>::Signed;
  static constexpr int n = vector_nbytes / sizeof(F), most = sizeof(F) == 8 ? 4 : 8,
                       together = n < most ? n : most;
  using V = vec<F, n>;
  using U = vec<Word, n>;
  using S = vec<Signed, n>;
  using Together = vec<F, together>;
  using TogetherU = vec<Word, together>;
  using TogetherS = vec<Signed, together>;
};

// The codes of a tile, bits(W) rows of 32, to N rows of words. Vectors of L lie side by side, some at a time.
template <class L>
inline void pack(const typename lanes<L>::word* codes, int N, char* words) {
  using W = typename lanes<L>::word;
  constexpr int bits = 8 * sizeof(W), n = lanes<L>::n, some = row / n < 4 ? row / n : 4;
  const L mask = L{} + W(W(-1) >> (bits - N));
  for (int i = 0; i < int(row); i += some * n) {
    char* to = words + i * sizeof(W);
    const W* from = codes + i;
    L word[some] = {};
    int at = 0;
    for (int r = 0; r < bits; r++, from += row) {
      L code[some];
      const L by = L{} + W(at);
      for (int k = 0; k < some; k++) {
        code[k] = load<L>(from + k * n) & mask;
        word[k] |= code[k] << by;
      }
      at += N;
      if (at < bits) continue;
      at -= bits;
      const L rest = L{} + W(N - at - 1);
      for (int k = 0; k < some; k++) {
        store(to + k * sizeof(L), word[k]);
        word[k] = code[k] >> rest >> 1;  // N - at may be all bits
      }
      to += row * sizeof(W);
    }
  }
}

// And back.
template <class L>
inline void unpack(const char* words, int N, typename lanes<L>::word* codes) {
  using W = typename lanes<L>::word;
  using S = vec<typename std::conditional<sizeof(W) == 8, int64_t, int32_t>::type, lanes<L>::n>;
  constexpr int bits = 8 * sizeof(W), n = lanes<L>::n, some = row / n < 4 ? row / n : 4;
  const L sign = L{} + (W(1) << (N - 1)), mask = L{} + W(W(-1) >> (bits - N)), spare = L{} + W(bits - N);
  for (int i = 0; i < int(row); i += some * n) {
    const char* from = words + i * sizeof(W);
    W* to = codes + i;
    L word[some];
    for (int k = 0; k < some; k++) word[k] = load<L>(from + k * sizeof(L));
    int at = 0;
    for (int r = 0; r < bits; r++, to += row) {
      L code[some];
      const L by = L{} + W(at);
      for (int k = 0; k < some; k++) code[k] = word[k] >> by;
      at += N;
      if (at >= bits && r < bits - 1) {
        at -= bits;
        from += row * sizeof(W);
        const L rest = L{} + W(N - at - 1);
        for (int k = 0; k < some; k++) {
          word[k] = load<L>(from + k * sizeof(L));
          code[k] |= word[k] << rest << 1;
        }
      }
      for (int k = 0; k < some; k++) {
        if (sizeof(W) == 4 || vector_nbytes == 64) code[k] = (L)((S)(code[k] << spare) >> (S)spare);
        else code[k] = ((code[k] & mask) ^ sign) - sign;  // for want of an arithmetic shift
        store(to + k * n, code[k]);
      }
    }
  }
}

// The last D lanes of a, then all but the last D of b.
template <int D, class S, int... i>
inline S shifted(S a, S b, std::integer_sequence<int, i...>) {
  constexpr int n = sizeof...(i);
  return __builtin_shuffle(a, b, S{(n - D + i)...});
}
// Each lane plus those D, 2 D, ... before it.
template <int D, class S, int... i>
inline S prefix(S v, std::integer_sequence<int, i...> all) {
  constexpr int n = sizeof...(i);
#if defined(__AVX2__)
  if constexpr (sizeof(S) == 32) {  // lanes of 16 bytes first, each of which shifts in one instruction
    constexpr int nbytes = 32 / n * D;
    __m256i w = (__m256i)v;
    if constexpr (nbytes <= 4) w = (__m256i)((S)w + (S)_mm256_slli_si256(w, 4));
    if constexpr (nbytes <= 8) w = (__m256i)((S)w + (S)_mm256_slli_si256(w, 8));
    __m256i low = _mm256_permute2x128_si256(w, w, 8);
    if constexpr (nbytes == 4) low = _mm256_shuffle_epi32(low, 0xff);
    if constexpr (nbytes == 8) low = _mm256_shuffle_epi32(low, 0xee);
    return (S)w + (S)low;
  }
#endif
  if constexpr (D < n) return prefix<2 * D>(v + shifted<D>(S{}, v, all), all);
  else return v;
}
// The last D lanes, again and again.
template <int D, class S, int... i>
inline S last(S v, std::integer_sequence<int, i...>) {
  constexpr int n = sizeof...(i);
  return __builtin_shuffle(v, S{(n - D + i % D)...});
}

template <class S>
inline S larger(S a, S b) {
  return a > b ? a : b;
}
template <int half, class S, int... i>
inline S merge(S a, S b, std::integer_sequence<int, i...>) {
  constexpr int n = sizeof...(i);
  return larger(__builtin_shuffle(a, b, S{(i & half ? n + i - half : i)...}),
                __builtin_shuffle(a, b, S{(i & half ? n + i : i + half)...}));
}
// Lane g gets the largest lane of v[g].
template <class S, int n, int half = n / 2>
inline S largest_lanes(const S* v) {
  constexpr auto all = std::make_integer_sequence<int, n>();
  if constexpr (half == 0) {
    return v[0];
  } else {
    S next[half];
    for (int i = 0; i < half; i++) next[i] = merge<half>(v[i], v[i + half], all);
    return largest_lanes<S, n, half / 2>(next);
  }
}

}  // namespace bfp
}  // namespace CC_LEVEL
}  // namespace compcoll
