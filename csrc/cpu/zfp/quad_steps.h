// The plane decoder of quad_decoder.h for lanes of 32 bits with AVX-512.
//
// A step decodes one plane, by one permutation each for the states n = 1 and n = 2; from n = 3 on, a plane is
// its own code. Windows are rotated right by one bit: the bit of coefficient 0 is bit 31, and the bits after
// it are the index. Rotations take a count from the low 5 bits of a field that has other data above. Bits
// that come round again, at most 21 in four steps, are above those that are used.
#pragma once
#include "../../zfp_quads.h"

#if defined(__AVX512BW__)
namespace compcoll {
namespace CC_LEVEL {
namespace zfp {

// Coefficients 1 to 3 of a plane in bits 0-2, coefficient 0 in bit 31 for state 0; number of code bits in
// 8-12; 16: the next n is 1; 17: the next n is 2.
struct QuadSteps {
  static constexpr uint32_t seven = 7, next_1 = 1 << 16, next_2 = 1 << 17;
  static constexpr uint32_t verbatim = 4 << 8;

  uint32_t first[64] = {};  // the plane after a 1, by the 6 bits that follow it
  uint32_t one[32] = {};  // n = 1, by the 5 bits after coefficient 0
  uint32_t two[16] = {};  // n = 2, by the 4 bits after coefficient 0
};

constexpr uint32_t quad_step(uint32_t entry, uint32_t seen) {
  const uint32_t plane = (entry & 15) | seen, next = (entry >> 7) & 7;
  const uint32_t flag = next == 1 ? QuadSteps::next_1 : next == 2 ? QuadSteps::next_2 : 0;
  return plane >> 1 | plane << 31 | ((entry >> 4) & 7) << 8 | flag;
}

constexpr QuadSteps make_quad_steps() {
  const QuadTables tables = make_quad_tables();
  QuadSteps steps;
  for (int i = 0; i < 64; i++) steps.first[i] = quad_step(tables.first[i], 0);
  for (int i = 0; i < 32; i++) steps.one[i] = quad_step(tables.decode[32 | i], 0);
  for (int i = 0; i < 16; i++) steps.two[i] = quad_step(tables.decode[8 | i >> 1], (i & 1) << 1);
  return steps;
}

alignas(64) inline constexpr QuadSteps quad_steps = make_quad_steps();

// Adds the planes of G vectors of blocks to `planes`, 4 at a time, until all have passed `end`. pos: first at
// the first nonzero plane, then after the last one. Returns the lowest plane.
template <int NW, int G>
inline int decode_quad_steps(const U32x16 (*words)[NW], U32x16* pos, int end, U32x16 (*planes)[4]) {
  constexpr int pick = 0xca, join = 0xf8;  // a ? b : c, a | (b & c)
  auto all = [](uint32_t v) { return _mm512_set1_epi32(v); };
  auto table = [](const uint32_t* t) { return _mm512_load_si512(t); };
  const __m512i one[2] = {table(quad_steps.one), table(quad_steps.one + 16)}, two = table(quad_steps.two);
  const __m512i seven = all(QuadSteps::seven), verbatim = all(QuadSteps::verbatim);
  const __m512i next_1 = all(QuadSteps::next_1), next_2 = all(QuadSteps::next_2), stop = all(end);
  __m512i step[G];
  for (int lowest = 28;; lowest -= 4) {
    __m512i window[G], used[G];
    uint32_t early = lowest == 28;
    for (int g = 0; g < G; g++) {
      window[g] = _mm512_ror_epi32(__m512i(quad_peek<NW>(words[g], pos[g])), 1);
      used[g] = _mm512_setzero_si512();
      if (lowest < 28) early |= _mm512_test_epi32_mask(step[g], next_1 | next_2);
    }
    const __m512i turn = all(lowest + 1), nibble = all(15u << lowest);
#pragma GCC unroll 4
    for (int j = 3; j >= 0; j--)
#pragma GCC unroll 4
      for (int g = 0; g < G; g++) {
        __m512i w = window[g], plane = w;
        if (j == 3 && lowest == 28) {
          const uint32_t* t = quad_steps.first;
          __m512i low = _mm512_permutex2var_epi32(table(t), w, table(t + 16));
          __m512i high = _mm512_permutex2var_epi32(table(t + 32), w, table(t + 48));
          plane = step[g] = _mm512_mask_mov_epi32(low, _mm512_test_epi32_mask(w, all(32)), high);
        } else if (early) {
          __mmask16 from_1 = _mm512_test_epi32_mask(step[g], next_1);
          __mmask16 from_2 = _mm512_test_epi32_mask(step[g], next_2);
          step[g] = _mm512_ternarylogic_epi64(seven, w, verbatim, pick);
          step[g] = _mm512_mask_permutexvar_epi32(step[g], from_2, w, two);
          step[g] = _mm512_mask_mov_epi32(step[g], from_1, _mm512_permutex2var_epi32(one[0], w, one[1]));
          plane = _mm512_ternarylogic_epi64(seven, step[g], w, pick);
        } else {
          step[g] = verbatim;
        }
        __m512i length = _mm512_srli_epi32(step[g], 8);
        window[g] = _mm512_rorv_epi32(w, length);
        used[g] = _mm512_add_epi32(used[g], length);
        plane = _mm512_rolv_epi32(plane, turn);
        planes[g][j] = U32x16(_mm512_ternarylogic_epi64(__m512i(planes[g][j]), plane, nibble, join));
      }
    uint32_t more = 0;
    for (int g = 0; g < G; g++) {
      pos[g] += U32x16(_mm512_and_si512(used[g], all(31)));
      more |= _mm512_cmplt_epi32_mask(__m512i(pos[g]), stop);
    }
    if (!more || !lowest) return lowest;
  }
}

}  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
#endif
