// 64 bytes side by side, and 64 bits that say something about each of them.
#pragma once
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "../lanes.h"

namespace compcoll {
namespace CC_LEVEL {

// On narrower machines the compiler makes several registers of it.
using Bytes64 = vec<uint8_t, 64>;

// The low bits of `bits`, one after another, at the set bits of the mask; and back.
CC_HD uint64_t deposit(uint64_t bits, uint64_t mask) {
#if defined(__BMI2__)
  return _pdep_u64(bits, mask);
#else
  uint64_t result = 0;
  for (; mask; mask &= mask - 1, bits >>= 1) result |= (mask & -mask) & (0 - (bits & 1));
  return result;
#endif
}
CC_HD uint64_t extract(uint64_t bits, uint64_t mask) {
#if defined(__BMI2__)
  return _pext_u64(bits, mask);
#else
  uint64_t result = 0;
  for (int k = 0; mask; mask &= mask - 1, k++) result |= uint64_t((bits & mask & -mask) != 0) << k;
  return result;
#endif
}

// The bytes' uppermost bits.
CC_HD uint64_t top_bits(Bytes64 v) {
#if defined(__AVX512BW__)
  return _mm512_movepi8_mask(__m512i(v));
#elif defined(__AVX2__)
  __m256i half[2];
  __builtin_memcpy(half, &v, 64);
  return uint32_t(_mm256_movemask_epi8(half[0])) | uint64_t(uint32_t(_mm256_movemask_epi8(half[1]))) << 32;
#elif defined(__SSE2__)
  __m128i part[4];
  __builtin_memcpy(part, &v, 64);
  uint64_t bits = 0;
  for (int i = 0; i < 4; i++) bits |= uint64_t(uint32_t(_mm_movemask_epi8(part[i]))) << (16 * i);
  return bits;
#else
  uint64_t part[8], bits = 0;
  __builtin_memcpy(part, &v, 64);
  for (int i = 0; i < 8; i++)
    bits |= ((part[i] >> 7 & 0x0101010101010101u) * 0x0102040810204080u >> 56) << (8 * i);
  return bits;
#endif
}

CC_HD uint64_t at_least(Bytes64 v, uint8_t least) {
#if defined(__AVX512BW__)
  return _mm512_cmpge_epu8_mask(__m512i(v), _mm512_set1_epi8(char(least)));
#else
  return top_bits(Bytes64(v >= least));
#endif
}

CC_HD uint64_t equal(Bytes64 v, uint8_t to) {
#if defined(__AVX512BW__)
  return _mm512_cmpeq_epi8_mask(__m512i(v), _mm512_set1_epi8(char(to)));
#else
  return top_bits(Bytes64(v == to));
#endif
}

// yes[i] where a[i] = b[i], else no[i]
CC_HD Bytes64 equal_select(Bytes64 a, Bytes64 b, Bytes64 yes, Bytes64 no) {
#if defined(__AVX512BW__)
  __mmask64 same = _mm512_cmpeq_epi8_mask(__m512i(a), __m512i(b));
  return Bytes64(_mm512_mask_mov_epi8(__m512i(no), same, __m512i(yes)));
#else
  Bytes64 same = Bytes64(a == b);
  return (same & yes) | (~same & no);
#endif
}

// max(v - s, 0)
CC_HD Bytes64 subtract_to_zero(Bytes64 v, uint8_t s) {
#if defined(__AVX512BW__)
  return Bytes64(_mm512_subs_epu8(__m512i(v), _mm512_set1_epi8(char(s))));
#else
  return (v - s) & Bytes64(v >= s);
#endif
}

// 255 where the bit is set, 0 elsewhere.
CC_HD Bytes64 spread(uint64_t bits) {
#if defined(__AVX512BW__)
  return Bytes64(_mm512_movm_epi8(bits));
#elif defined(__AVX2__)
  const __m256i byte = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i bit = _mm256_set1_epi64x(int64_t(0x8040201008040201u));
  __m256i half[2];
  for (int i = 0; i < 2; i++) {
    __m256i v = _mm256_shuffle_epi8(_mm256_set1_epi32(int32_t(bits >> (32 * i))), byte);
    half[i] = _mm256_cmpeq_epi8(_mm256_and_si256(v, bit), bit);
  }
  Bytes64 v;
  __builtin_memcpy(&v, half, 64);
  return v;
#else
  uint64_t part[8];
  for (int i = 0; i < 8; i++) {
    uint64_t v = (bits >> (8 * i) & 255) * 0x0101010101010101u & 0x8040201008040201u;
    part[i] = (((v + 0x7f7f7f7f7f7f7f7fu) | v) >> 7 & 0x0101010101010101u) * 255;
  }
  Bytes64 v;
  __builtin_memcpy(&v, part, 64);
  return v;
#endif
}

// v + 1 where the bit is set.
CC_HD Bytes64 add_bits(Bytes64 v, uint64_t bits) {
#if defined(__AVX512BW__)
  return Bytes64(_mm512_mask_add_epi8(__m512i(v), bits, __m512i(v), _mm512_set1_epi8(1)));
#else
  return v - spread(bits);
#endif
}

// table[v[i] & 15]
CC_HD Bytes64 lookup16(const uint8_t* table, Bytes64 v) {
  v &= 15;
#if defined(__AVX512BW__)
  __m512i t = _mm512_maskz_broadcast_i32x4(0xffff, load<__m128i>(table));
  return Bytes64(_mm512_shuffle_epi8(t, __m512i(v)));
#elif defined(__AVX2__)
  __m256i t = _mm256_broadcastsi128_si256(load<__m128i>(table)), half[2];
  __builtin_memcpy(half, &v, 64);
  for (int i = 0; i < 2; i++) half[i] = _mm256_shuffle_epi8(t, half[i]);
  __builtin_memcpy(&v, half, 64);
  return v;
#else
  uint8_t at[64];
  store(at, v);
  for (int i = 0; i < 64; i++) at[i] = table[at[i]];
  return load<Bytes64>(at);
#endif
}

}  // namespace CC_LEVEL
}  // namespace compcoll
