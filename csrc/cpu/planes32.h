// Bit planes of 32 words: from vector registers to memory, and back.
#pragma once
#include "block32.h"

namespace compcoll {
namespace CC_LEVEL {

// put_planes writes the g-th group of `planes` planes of the block to dst, one word each. get_planes reads as
// many planes as the width says, and adds them to a block of zeros. Byte i of the transposed 64-bit lane j is
// byte j of word i, or the byte of value 8j + i.
#if defined(__AVX512BW__)
constexpr int planes = 16;
#else
constexpr int planes = 8;
#endif

#if defined(__AVX512BW__)
// Transposes the bytes of four words in each quarter; likewise 64-bit lanes in each half.
inline __m512i transpose_4x4(__m512i v) {
  const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_shuffle_epi8(v, _mm512_broadcast_i32x4(order));
}

// Bytes 2g of all words are in the lower half, bytes 2g + 1 in the upper one.
inline void put_planes(const Block& z, int g, uint8_t* dst) {
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
  const __m512i halves = _mm512_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
  const __m512i which = _mm512_add_epi32(order, _mm512_set1_epi32(2 * g));
  const __m512i lower = transpose_4x4((__m512i)z.v[0]), upper = transpose_4x4((__m512i)z.v[1]);
  __m512i t = _mm512_permutex2var_epi32(lower, which, upper);
  t = _mm512_permutexvar_epi32(halves, (__m512i)szp_transpose((vec<uint64_t, 8>)t));
  _mm512_storeu_si512(dst, transpose_4x4(t));
}

inline void get_planes(Block& z, int g, int width, const uint8_t* src) {
  const __m512i halves = _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
  const __m512i order = _mm512_setr_epi32(0, 8, 0, 8, 1, 9, 1, 9, 2, 10, 2, 10, 3, 11, 3, 11);
  const __mmask16 here = g ? 0xcccc : 0x3333;
  __m512i t = transpose_4x4(_mm512_maskz_loadu_epi32(_bzhi_u32(0xffff, width - 16 * g), src));
  t = (__m512i)szp_transpose((vec<uint64_t, 8>)_mm512_permutexvar_epi32(halves, t));
  for (int i = 0; i < 2; i++) {
    const __m512i which = _mm512_add_epi32(order, _mm512_set1_epi32(4 * i));
    z.v[i] |= (Words)transpose_4x4(_mm512_maskz_permutexvar_epi32(here, which, t));
  }
}
#elif defined(__AVX2__)
inline __m256i byte_of_words(const Block& z, int g) {
  __m256i b[4];
  for (int i = 0; i < 4; i++) b[i] = (__m256i)((z.v[i] >> 8 * g) & 255);
  __m256i packed = _mm256_packus_epi16(_mm256_packus_epi32(b[0], b[1]), _mm256_packus_epi32(b[2], b[3]));
  return _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

inline __m256i transpose_4x4(__m256i v) {  // the bytes of four words, in each half
  const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm256_shuffle_epi8(v, _mm256_broadcastsi128_si256(order));
}

inline void put_planes(const Block& z, int g, uint8_t* dst) {
  __m256i t = (__m256i)szp_transpose((vec<uint64_t, 4>)byte_of_words(z, g));
  t = _mm256_permutevar8x32_epi32(t, _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
  _mm256_storeu_si256((__m256i*)dst, transpose_4x4(t));
}

inline void get_planes(Block& z, int g, int width, const uint8_t* src) {
  width -= 8 * g;
  __m256i t = transpose_4x4(_mm256_loadu_si256((const __m256i*)src));
  t = _mm256_permutevar8x32_epi32(t, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  t = (__m256i)szp_transpose((vec<uint64_t, 4>)t);
  t = _mm256_and_si256(t, _mm256_set1_epi8(char(width >= 8 ? 255 : (1 << width) - 1)));
  __m128i lo = _mm256_castsi256_si128(t), hi = _mm256_extracti128_si256(t, 1);
  z.v[0] |= (Words)_mm256_cvtepu8_epi32(lo) << 8 * g;
  z.v[1] |= (Words)_mm256_cvtepu8_epi32(_mm_srli_si128(lo, 8)) << 8 * g;
  z.v[2] |= (Words)_mm256_cvtepu8_epi32(hi) << 8 * g;
  z.v[3] |= (Words)_mm256_cvtepu8_epi32(_mm_srli_si128(hi, 8)) << 8 * g;
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
  width -= 8 * g;
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
