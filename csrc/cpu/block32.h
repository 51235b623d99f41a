// 32 words of 32 bits in vector registers, and their bit planes in memory: what the language's own
// vectors lack, once for each instruction set.
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
// w moved up by K lanes, the room filled with the top lanes of `below`.
template <int K>
inline Words shift_in(Words below, Words w) {
  return (Words)_mm512_alignr_epi32((__m512i)w, (__m512i)below, 16 - K);
}
inline Words spread_last(Words w) {
  return (Words)_mm512_permutexvar_epi32(_mm512_set1_epi32(15), (__m512i)w);
}
template <class V>
inline bool any(V mask) {  // of lanes that are 0 or -1
  if constexpr (sizeof mask == 64) return _mm512_movepi32_mask((__m512i)mask);
  else return !_mm256_testz_si256((__m256i)mask, (__m256i)mask);
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

// w[i] becomes w[0] + ... + w[i].
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

inline uint32_t or_of_all(const Block& z) {
  Words all = z.v[0];
  for (int i = 1; i < 32 / lanes32; i++) all |= z.v[i];
#if defined(__AVX512BW__)
  return _mm512_reduce_or_epi32((__m512i)all);
#else
  uint32_t u = 0;
  for (int i = 0; i < lanes32; i++) u |= all[i];
  return u;
#endif
}

// Planes 8g to 8g + 7 of the block as 8 words at dst, and back. Byte i of the transposed 64-bit lane j
// is byte j of word i, or byte g of value 8j + i.
using Bytes32 = vec<uint64_t, 4>;

#if defined(__AVX2__)
inline __m256i byte_of_words(const Block& z, int g) {
#if defined(__AVX512BW__)
  __m128i lo = _mm512_cvtepi32_epi8((__m512i)(z.v[0] >> 8 * g));
  __m128i hi = _mm512_cvtepi32_epi8((__m512i)(z.v[1] >> 8 * g));
  return _mm256_set_m128i(hi, lo);
#else
  __m256i b[4];
  for (int i = 0; i < 4; i++) b[i] = (__m256i)((z.v[i] >> 8 * g) & 255);
  __m256i packed = _mm256_packus_epi16(_mm256_packus_epi32(b[0], b[1]), _mm256_packus_epi32(b[2], b[3]));
  return _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
#endif
}

inline __m256i transpose_4x4() {  // bytes of four words, in each half
  return _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
}

inline void put_planes(const Block& z, int g, uint8_t* dst) {
  __m256i t = (__m256i)szp_transpose((Bytes32)byte_of_words(z, g));
  t = _mm256_permutevar8x32_epi32(t, _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
  _mm256_storeu_si256((__m256i*)dst, _mm256_shuffle_epi8(t, transpose_4x4()));
}

inline void get_planes(Block& z, int g, int width, const uint8_t* src) {
  __m256i t = _mm256_shuffle_epi8(_mm256_loadu_si256((const __m256i*)src), transpose_4x4());
  t = _mm256_permutevar8x32_epi32(t, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  t = (__m256i)szp_transpose((Bytes32)t);
  t = _mm256_and_si256(t, _mm256_set1_epi8(char(width >= 8 ? 255 : (1 << width) - 1)));
#if defined(__AVX512BW__)
  z.v[0] |= (Words)_mm512_cvtepu8_epi32(_mm256_castsi256_si128(t)) << 8 * g;
  z.v[1] |= (Words)_mm512_cvtepu8_epi32(_mm256_extracti128_si256(t, 1)) << 8 * g;
#else
  __m128i lo = _mm256_castsi256_si128(t), hi = _mm256_extracti128_si256(t, 1);
  z.v[0] |= (Words)_mm256_cvtepu8_epi32(lo) << 8 * g;
  z.v[1] |= (Words)_mm256_cvtepu8_epi32(_mm_srli_si128(lo, 8)) << 8 * g;
  z.v[2] |= (Words)_mm256_cvtepu8_epi32(hi) << 8 * g;
  z.v[3] |= (Words)_mm256_cvtepu8_epi32(_mm_srli_si128(hi, 8)) << 8 * g;
#endif
}
#else
inline void put_planes(const Block& z, int g, uint8_t* dst) {
  for (int j = 0; j < 4; j++) {
    uint64_t t = 0;
    for (int i = 7; i >= 0; i--) t = t << 8 | (z.v[(8 * j + i) / lanes32][i % lanes32] >> 8 * g & 255);
    t = szp_transpose(t);
    for (int i = 0; i < 8; i++) dst[4 * i + j] = uint8_t(t >> 8 * i);
  }
}

inline void get_planes(Block& z, int g, int width, const uint8_t* src) {
  for (int j = 0; j < 4; j++) {
    uint64_t t = 0;
    for (int i = width < 8 ? width - 1 : 7; i >= 0; i--) t |= uint64_t(src[4 * i + j]) << 8 * i;
    t = szp_transpose(t);
    for (int i = 0; i < 8; i++)
      z.v[(8 * j + i) / lanes32][i % lanes32] |= uint32_t(t >> 8 * i & 255) << 8 * g;
  }
}
#endif

}  // namespace CC_LEVEL
}  // namespace compcoll
