// 32 words of 32 bits in vector registers: operations that GCC's vectors lack, for each instruction set.
#pragma once
#include "../szp.h"
#include "real.h"

namespace compcoll {
namespace CC_LEVEL {

constexpr int lanes32 = vector_nbytes / 4;
using Words = vec<uint32_t, lanes32>;
using HalfWords = vec<uint32_t, lanes32 / 2>;
using Quads = vec<uint64_t, lanes32 / 2>;
struct Block { Words v[32 / lanes32]; };

#if defined(__AVX512BW__)
// The low words of a, then those of b.
inline Words low_words(Quads a, Quads b) {
  const Words even = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30};
  return (Words)_mm512_permutex2var_epi32((__m512i)a, (__m512i)even, (__m512i)b);
}
inline HalfWords half(Words w, int i) {
  return (HalfWords)(i ? _mm512_extracti64x4_epi64((__m512i)w, 1) : _mm512_castsi512_si256((__m512i)w));
}
// Moves w up by K lanes, filling with the top lanes of `below`.
template <int K>
inline Words shift_in(Words below, Words w) {
  return (Words)_mm512_alignr_epi32((__m512i)w, (__m512i)below, 16 - K);
}
inline Words spread_last(Words w) {
  return (Words)_mm512_permutexvar_epi32(_mm512_set1_epi32(15), (__m512i)w);
}
inline bool any(vec<int32_t, 16> mask) {  // lanes are 0 or -1
  return _mm512_movepi32_mask((__m512i)mask);
}
inline bool any_above(vec<int32_t, 16> v, vec<int32_t, 16> limit) {
  return _mm512_cmpgt_epi32_mask((__m512i)v, (__m512i)limit);
}
inline bool any_above(vec<int64_t, 8> v, vec<int64_t, 8> limit) {
  return _mm512_cmpgt_epi64_mask((__m512i)v, (__m512i)limit);
}
inline bool any_above(vec<int32_t, 8> v, vec<int32_t, 8> limit) {
  return _mm256_cmpgt_epi32_mask((__m256i)v, (__m256i)limit);
}
#elif defined(__AVX2__)
inline Words low_words(Quads a, Quads b) {
  __m256 mixed = _mm256_shuffle_ps((__m256)a, (__m256)b, 0x88);
  return (Words)_mm256_permute4x64_epi64((__m256i)mixed, 0xd8);
}
inline HalfWords half(Words w, int i) {
  return (HalfWords)(i ? _mm256_extracti128_si256((__m256i)w, 1) : _mm256_castsi256_si128((__m256i)w));
}
template <int K>
inline Words shift_in(Words below, Words w) {
  __m256i middle = _mm256_permute2x128_si256((__m256i)below, (__m256i)w, 0x21);
  if constexpr (K == 4) return (Words)middle;
  else return (Words)_mm256_alignr_epi8((__m256i)w, middle, 16 - 4 * K);
}
inline Words spread_last(Words w) {
  return (Words)_mm256_permutevar8x32_epi32((__m256i)w, _mm256_set1_epi32(7));
}
template <class V>
inline bool any(V mask) {
  if constexpr (sizeof mask == 32) return !_mm256_testz_si256((__m256i)mask, (__m256i)mask);
  else return !_mm_testz_si128((__m128i)mask, (__m128i)mask);
}
#else
inline Words low_words(Quads a, Quads b) {
  return Words{uint32_t(a[0]), uint32_t(a[1]), uint32_t(b[0]), uint32_t(b[1])};
}
inline HalfWords half(Words w, int i) { return HalfWords{w[2 * i], w[2 * i + 1]}; }
template <int K>
inline Words shift_in(Words below, Words w) {
  static_assert(K == 1 || K == 2);
  return K == 1 ? Words{below[3], w[0], w[1], w[2]} : Words{below[2], below[3], w[0], w[1]};
}
inline Words spread_last(Words w) { return Words{} + w[3]; }
template <class V>
inline bool any(V mask) {
  int64_t all = 0;
  for (unsigned i = 0; i < sizeof(V) / sizeof mask[0]; i++) all |= mask[i];
  return all != 0;
}
#endif

#if !defined(__AVX512BW__)
template <class V>
inline bool any_above(V v, V limit) {
  return any(v > limit);
}
#endif

// Replaces w[i] by w[0] + ... + w[i].
inline Words prefix_sum(Words w) {
  w += shift_in<1>(Words{}, w);
  w += shift_in<2>(Words{}, w);
  if constexpr (lanes32 >= 8) w += shift_in<4>(Words{}, w);
  if constexpr (lanes32 >= 16) w += shift_in<8>(Words{}, w);
  return w;
}

inline Words clear_first(Words w) {
#if defined(__AVX512BW__)
  return (Words)_mm512_maskz_mov_epi32(0xfffe, (__m512i)w);
#else
  w[0] = 0;
  return w;
#endif
}

inline Words only_first(uint32_t u) {
  Words w = {};
  w[0] = u;
  return w;
}

// The "or" of all words of each block.
inline void or_of_each(const Block& a, const Block& b, uint32_t& of_a, uint32_t& of_b) {
#if defined(__AVX512BW__)
  __m512i x = (__m512i)(a.v[0] | a.v[1]), y = (__m512i)(b.v[0] | b.v[1]);
  x = _mm512_or_si512(_mm512_shuffle_i64x2(x, y, 0x44), _mm512_shuffle_i64x2(x, y, 0xee));
  x = _mm512_or_si512(x, _mm512_permutex_epi64(x, 0x4e));
  x = _mm512_or_si512(x, _mm512_shuffle_epi32(x, _MM_PERM_BADC));
  x = _mm512_or_si512(x, _mm512_shuffle_epi32(x, _MM_PERM_CDAB));
  of_a = _mm_cvtsi128_si32(_mm512_castsi512_si128(x));
  of_b = _mm_cvtsi128_si32(_mm512_extracti32x4_epi32(x, 2));
#else
  Words x = a.v[0], y = b.v[0];
  for (int i = 1; i < 32 / lanes32; i++) x |= a.v[i], y |= b.v[i];
  of_a = of_b = 0;
  for (int i = 0; i < lanes32; i++) of_a |= x[i], of_b |= y[i];
#endif
}

}  // namespace CC_LEVEL
}  // namespace compcoll
