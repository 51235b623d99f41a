// Vector operations of bfp at this level: rounding, shifts and sums across lanes, and packing codes into
// words.
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

// Clamps to -range ... range. On the dependent path from block to block, so each instruction counts.
#if defined(__AVX512DQ__)
inline vec<float, 16> clamped(vec<float, 16> v, float range) {  // the smaller magnitude, with the sign of v
  return (vec<float, 16>)_mm512_range_ps((__m512)v, _mm512_set1_ps(range), 2);
}
inline vec<double, 8> clamped(vec<double, 8> v, double range) {
  return (vec<double, 8>)_mm512_range_pd((__m512d)v, _mm512_set1_pd(range), 2);
}
#elif defined(__AVX2__)
inline vec<float, 8> clamped(vec<float, 8> v, float range) {
  return (vec<float, 8>)_mm256_max_ps(_mm256_min_ps((__m256)v, _mm256_set1_ps(range)),
                                      _mm256_set1_ps(-range));
}
inline vec<double, 4> clamped(vec<double, 4> v, double range) {
  return (vec<double, 4>)_mm256_max_pd(_mm256_min_pd((__m256d)v, _mm256_set1_pd(range)),
                                       _mm256_set1_pd(-range));
}
#elif defined(__SSE2__)
inline vec<float, 4> clamped(vec<float, 4> v, float range) {
  return (vec<float, 4>)_mm_max_ps(_mm_min_ps((__m128)v, _mm_set1_ps(range)), _mm_set1_ps(-range));
}
inline vec<double, 2> clamped(vec<double, 2> v, double range) {
  return (vec<double, 2>)_mm_max_pd(_mm_min_pd((__m128d)v, _mm_set1_pd(range)), _mm_set1_pd(-range));
}
#else
template <class V, class F>
inline V clamped(V v, F range) {
  v = v < range ? v : V{} + range;
  return v > -range ? v : V{} - range;
}
#endif

template <class S>
inline auto to_values(S q) {
  using I = typename std::remove_reference<decltype(q[0])>::type;
  constexpr int n = sizeof(S) / sizeof(I);
  if constexpr (sizeof(I) == 4) return __builtin_convertvector(q, vec<float, n>);
  else return value_by_sum<vec<double, n>, vec<uint64_t, n>>((vec<uint64_t, n>)q);
}
inline float to_values(int32_t q) { return float(q); }
inline double to_values(int64_t q) { return value_by_sum<double, uint64_t>(uint64_t(q)); }

// Vectors of n values F, and vectors of one number per tile for the tiles that are processed together.
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

// A shift count for lanes, hidden from the compiler, which otherwise uses two instructions for it.
template <class L>
inline L shift_count(int count) {
  L v = L{} + typename lanes<L>::word(count);
#if defined(__AVX2__)
  __asm__("" : "+v"(v));
#endif
  return v;
}

// Stochastic rounding of values j, j + 1, ... of a block.
template <class F, int... i>
inline typename Vectors<F>::V round_by_hash(typename Vectors<F>::V y, uint32_t key, uint32_t j,
                                            std::integer_sequence<int, i...>) {
  using X = Vectors<F>;
  const auto hash = blockscale_mix((vec<uint32_t, X::n>{uint32_t(i)...} + j) * blockscale_golden + key);
  typename X::V random, whole = to_values(to_integers(y));
  if constexpr (sizeof(F) == 4) random = to_values((typename X::S)(hash >> 9));
  else random = value_by_sum<typename X::V, typename X::U>(__builtin_convertvector(hash, typename X::U));
  whole = whole > y ? whole - F(1) : whole;
  return round_by<F>(y, whole, random);
}

// Number of adjacent vectors of L in a row that are packed or unpacked together.
template <class L> constexpr int side_by_side = row / lanes<L>::n < 4 ? row / lanes<L>::n : 4;

// Packs rows of codes into words with N bits per code.
template <class L>
inline void pack(const typename lanes<L>::word* codes, int N, int rows, char* words) {
  using W = typename lanes<L>::word;
  constexpr int bits = 8 * sizeof(W), n = lanes<L>::n, some = side_by_side<L>;
  const L mask = L{} + W(W(-1) >> (bits - N));
  for (int i = 0; i < int(row); i += some * n) {
    char* to = words + i * sizeof(W);
    const W* from = codes + i;
    L word[some] = {};
    int at = 0;
    for (int r = 0; r < rows; r++, from += row) {
      L code[some];
      const L by = shift_count<L>(at);
      for (int k = 0; k < some; k++) {
        code[k] = load<L>(from + k * n) & mask;
        word[k] |= code[k] << by;
      }
      at += N;
      if (at < bits) continue;
      at -= bits;
      const L rest = shift_count<L>(N - at);
      for (int k = 0; k < some; k++) {
        store(to + k * sizeof(L), word[k]);
        word[k] = code[k] >> rest;
      }
      to += row * sizeof(W);
    }
    if (at > 0)
      for (int k = 0; k < some; k++) store(to + k * sizeof(L), word[k]);
  }
}

// The inverse.
template <class L>
inline void unpack(const char* words, int N, int rows, typename lanes<L>::word* codes) {
  using W = typename lanes<L>::word;
  constexpr int bits = 8 * sizeof(W), n = lanes<L>::n, some = side_by_side<L>;
  const L sign = L{} + (W(1) << (N - 1)), mask = L{} + W(W(-1) >> (bits - N));
  for (int i = 0; i < int(row); i += some * n) {
    const char* from = words + i * sizeof(W);
    W* to = codes + i;
    L word[some];
    for (int k = 0; k < some; k++) word[k] = load<L>(from + k * sizeof(L));
    int at = 0;
    for (int r = 0; r < rows; r++, to += row) {
      L code[some];
      const L by = shift_count<L>(at);
      for (int k = 0; k < some; k++) code[k] = word[k] >> by;
      at += N;
      if (at >= bits) {
        at -= bits;
        if (at > 0 || r < rows - 1) {
          from += row * sizeof(W);
          const L rest = shift_count<L>(N - at);
          for (int k = 0; k < some; k++) {
            word[k] = load<L>(from + k * sizeof(L));
            code[k] |= word[k] << rest;
          }
        }
      }
      for (int k = 0; k < some; k++) store(to + k * n, ((code[k] & mask) ^ sign) - sign);
    }
  }
}

// Unpacks codes of at most 10 bits, with those of two rows in the halves of a word: a block's sums fit into
// 16 bits.
constexpr uint32_t most_half_bits = 10;
template <class L>
inline void unpack_halves(const char* words, int N, int blocks, uint32_t* codes) {
  constexpr int n = lanes<L>::n, some = side_by_side<L>;
  using H = vec<uint16_t, 2 * n>;
  const uint16_t ones = uint16_t((1 << N) - 1), top = uint16_t(1 << (N - 1));
  const L low = L{} + 0xffff, mask = (L)(H{} + ones), sign = (L)(H{} + top), apart = shift_count<L>(16 - N);
  for (int i = 0; i < int(row); i += some * n) {
    const char* from = words + i * 4;
    uint32_t* to = codes + i;
    L word[some];
    for (int k = 0; k < some; k++) word[k] = load<L>(from + k * sizeof(L));
    int at = 0;
    for (int b = 0; b < blocks; b++, to += row) {
      L two[some];
      const L by = shift_count<L>(at);
      for (int k = 0; k < some; k++) two[k] = word[k] >> by;
      at += 2 * N;
      if (at >= 32) {
        at -= 32;
        if (at > 0 || b < blocks - 1) {
          from += row * 4;
          const L rest = shift_count<L>(2 * N - at);
          for (int k = 0; k < some; k++) {
            word[k] = load<L>(from + k * sizeof(L));
            two[k] |= word[k] << rest;
          }
        }
      }
      for (int k = 0; k < some; k++) {
        const L both = (two[k] & low) | (two[k] << apart & ~low);
        store(to + k * n, (H)((both & mask) ^ sign) - (H)sign);
      }
    }
  }
}

// The last D lanes of a, then all but the last D lanes of b.
template <int D, class S, int... i>
inline S shifted(S a, S b, std::integer_sequence<int, i...>) {
  constexpr int n = sizeof...(i);
  return __builtin_shuffle(a, b, S{(n - D + i)...});
}
// Moves lanes up by D; zeros come first.
template <int D, class S, int... i>
inline S moved_up(S v, std::integer_sequence<int, i...> all) {
#if defined(__AVX512F__)
  if constexpr (sizeof(S) == 64 && sizeof...(i) == 16)
    return (S)_mm512_alignr_epi32((__m512i)v, _mm512_setzero_si512(), 16 - D);
#endif
  return shifted<D>(S{}, v, all);
}
// Adds to each lane those D, 2 D, ... before it. A is the type for addition: lanes of S or halves of them.
template <int D, class A, class S, int... i>
inline S prefix(S v, std::integer_sequence<int, i...> all) {
  constexpr int n = sizeof...(i);
#if defined(__AVX2__)
  if constexpr (sizeof(S) == 32) {  // first within 16 bytes, where a shift is one instruction
    constexpr int nbytes = 32 / n * D;
    __m256i w = (__m256i)v;
    if constexpr (nbytes <= 4) w = (__m256i)((A)w + (A)_mm256_slli_si256(w, 4));
    if constexpr (nbytes <= 8) w = (__m256i)((A)w + (A)_mm256_slli_si256(w, 8));
    __m256i low = _mm256_permute2x128_si256(w, w, 8);
    if constexpr (nbytes == 4) low = _mm256_shuffle_epi32(low, 0xff);
    if constexpr (nbytes == 8) low = _mm256_shuffle_epi32(low, 0xee);
    return (S)((A)w + (A)low);
  }
#endif
  if constexpr (D < n) return prefix<2 * D, A>((S)((A)v + (A)moved_up<D>(v, all)), all);
  else return v;
}
// The last D lanes, repeated.
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
// Lane g is the largest lane of v[g].
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

// Stores a vector of values at index i of d; float16 values are kept from rounding to infinity.
template <class T, bool adding, class V>
inline void put(char* d, int i, V v) {
  constexpr bool narrow = sizeof(T) < sizeof(v[0]);
  d += i * (adding ? sizeof(v[0]) : sizeof(T));
  if constexpr (std::is_same<T, Float16>::value) v = clamped(v, 65504.f);
  if constexpr (narrow) v = Real<T>::round_pair(v);
  if constexpr (adding) store(d, load<V>(d) + v);
  else if constexpr (narrow) Real<T>::store_pair(d, v);
  else store(d, v);
}
// Stores a block.
template <class T, bool adding, class F>
inline void put_block(char* d, const typename Form<F>::Word* q, F step) {
  using S = typename Vectors<F>::S;
  for (int i = 0; i < int(block); i += Vectors<F>::n) put<T, adding>(d, i, to_values(load<S>(q + i)) * step);
}

}  // namespace bfp
}  // namespace CC_LEVEL
}  // namespace compcoll
