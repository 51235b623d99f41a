// Packing lanes selected by a mask, and spreading them again. Compressed forms go through a register and a
// whole-vector access, because compression straight to memory is microcoded on some processors. So stores
// write, and loads read, up to one vector more than the selected lanes.
#pragma once
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "../lanes.h"

namespace compcoll {
namespace CC_LEVEL {

#if defined(__AVX2__)
// For every mask, the indices of the lanes to gather, of 32 bits or bytes of 8, one byte per index. A 64-bit
// lane counts as two 32-bit lanes.
struct PackTable {
  uint64_t pack32[256], unpack32[256], pack64[16], unpack64[16];
  constexpr PackTable() : pack32(), unpack32(), pack64(), unpack64() {
    for (int mask = 0; mask < 256; mask++) fill<8, 1>(mask, pack32[mask], unpack32[mask]);
    for (int mask = 0; mask < 16; mask++) fill<4, 2>(mask, pack64[mask], unpack64[mask]);
  }
  template <int n, int parts>
  static constexpr void fill(int mask, uint64_t& packed, uint64_t& unpacked) {
    for (int i = 0, at = 0; i < n; i++)
      if (mask >> i & 1) {
        for (int k = 0; k < parts; k++) {
          packed |= uint64_t(parts * i + k) << 8 * (parts * at + k);
          unpacked |= uint64_t(parts * at + k) << 8 * (parts * i + k);
        }
        at++;
      }
  }
};
alignas(64) constexpr PackTable pack_table;

// The nonzero bytes of a word, packed; bit i of the mask: byte i is not zero.
CC_HD uint64_t pack_bytes(uint64_t word, uint32_t& mask) {
  const __m128i v = _mm_cvtsi64_si128(int64_t(word));
  mask = 0xff & ~uint32_t(_mm_movemask_epi8(_mm_cmpeq_epi8(v, _mm_setzero_si128())));
  return uint64_t(
      _mm_cvtsi128_si64(_mm_shuffle_epi8(v, _mm_cvtsi64_si128(int64_t(pack_table.pack32[mask])))));
}
// The inverse: takes as many bytes of `packed` as the mask has bits.
CC_HD uint64_t unpack_bytes(uint64_t packed, uint32_t mask) {
  const __m128i lanes = _mm_cvtsi64_si128(int64_t(pack_table.unpack32[mask])),
                bits = _mm_set1_epi64x(int64_t(0x8040201008040201)),
                chosen = _mm_cmpeq_epi8(_mm_and_si128(_mm_set1_epi8(char(mask)), bits), bits);
  const __m128i v = _mm_shuffle_epi8(_mm_cvtsi64_si128(int64_t(packed)), lanes);
  return uint64_t(_mm_cvtsi128_si64(_mm_and_si128(v, chosen)));
}
#else
CC_HD uint64_t pack_bytes(uint64_t word, uint32_t& mask) {
  uint64_t packed = 0;
  mask = 0;
  for (uint32_t i = 0, at = 0; i < 8; i++) {
    const uint64_t byte = word >> 8 * i & 255;
    packed |= byte << 8 * at;
    mask |= uint32_t(byte != 0) << i;
    at += byte != 0;
  }
  return packed;
}
CC_HD uint64_t unpack_bytes(uint64_t packed, uint32_t mask) {
  uint64_t word = 0;
  for (; mask; mask &= mask - 1, packed >>= 8) word |= (packed & 255) << 8 * __builtin_ctz(mask);
  return word;
}
#endif

#if defined(__AVX512BW__)
CC_HD uint32_t nonzero(vec<uint32_t, 16> v) { return _mm512_test_epi32_mask(__m512i(v), __m512i(v)); }
CC_HD uint32_t nonzero(vec<uint64_t, 8> v) { return _mm512_test_epi64_mask(__m512i(v), __m512i(v)); }

CC_HD vec<uint32_t, 16> pack(vec<uint32_t, 16> v, uint32_t mask) {
  return vec<uint32_t, 16>(_mm512_maskz_compress_epi32(mask, __m512i(v)));
}
CC_HD vec<uint64_t, 8> pack(vec<uint64_t, 8> v, uint32_t mask) {
  return vec<uint64_t, 8>(_mm512_maskz_compress_epi64(mask, __m512i(v)));
}
CC_HD vec<uint32_t, 16> unpack(vec<uint32_t, 16> v, uint32_t mask) {
  return vec<uint32_t, 16>(_mm512_maskz_expand_epi32(mask, __m512i(v)));
}
CC_HD vec<uint64_t, 8> unpack(vec<uint64_t, 8> v, uint32_t mask) {
  return vec<uint64_t, 8>(_mm512_maskz_expand_epi64(mask, __m512i(v)));
}

#elif defined(__AVX2__)
CC_HD uint32_t nonzero(vec<uint32_t, 8> v) { return 0xff ^ _mm256_movemask_ps(__m256(__m256i(v == 0))); }
CC_HD uint32_t nonzero(vec<uint64_t, 4> v) { return 0xf ^ _mm256_movemask_pd(__m256d(__m256i(v == 0))); }
template <class V>
CC_HD V gather_lanes(V v, const uint64_t& index) {
  __m256i lanes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(&index)));
  return V(_mm256_permutevar8x32_epi32(__m256i(v), lanes));
}
CC_HD vec<uint32_t, 8> pack(vec<uint32_t, 8> v, uint32_t mask) {
  return gather_lanes(v, pack_table.pack32[mask]);
}
CC_HD vec<uint64_t, 4> pack(vec<uint64_t, 4> v, uint32_t mask) {
  return gather_lanes(v, pack_table.pack64[mask]);
}
CC_HD vec<uint32_t, 8> unpack(vec<uint32_t, 8> v, uint32_t mask) {
  const vec<uint32_t, 8> bit = {1, 2, 4, 8, 16, 32, 64, 128};
  return gather_lanes(v, pack_table.unpack32[mask]) & vec<uint32_t, 8>((bit & mask) != 0);
}
CC_HD vec<uint64_t, 4> unpack(vec<uint64_t, 4> v, uint32_t mask) {
  const vec<uint64_t, 4> bit = {1, 2, 4, 8};
  return gather_lanes(v, pack_table.unpack64[mask]) & vec<uint64_t, 4>((bit & mask) != 0);
}
#endif

// Stores the nonzero lanes and advances `out` past them; bit i of the result: lane i is not zero.
template <class W, class V>
CC_HD uint32_t store_nonzero(V v, uint8_t*& out) {
#if defined(__AVX2__)
  uint32_t mask = nonzero(v);
  store(out, pack(v, mask));
  out += __builtin_popcount(mask) * sizeof(W);
  return mask;
#else
  uint32_t mask = 0;
  for (int i = 0; i < lanes<V>::n; i++) {
    store<W>(out, v[i]);
    mask |= uint32_t(v[i] != 0) << i;
    out += (v[i] != 0) * sizeof(W);
  }
  return mask;
#endif
}

// The inverse: as many words from `in` as the mask has bits, zeros elsewhere; advances `in`.
template <class W, class V>
CC_HD V load_nonzero(uint32_t mask, const uint8_t*& in) {
#if defined(__AVX2__)
  V v = unpack(load<V>(in), mask);
  in += __builtin_popcount(mask) * sizeof(W);
  return v;
#else
  V v;
  for (int i = 0; i < lanes<V>::n; i++) {
    W bit = mask >> i & 1;
    v[i] = load<W>(in) & (0 - bit);
    in += bit * sizeof(W);
  }
  return v;
#endif
}

}  // namespace CC_LEVEL
}  // namespace compcoll
