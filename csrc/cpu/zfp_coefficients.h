// From planes back to coefficients where only the highest planes hold anything, as at low rates.
#pragma once
#include "../zfp_lanes.h"

namespace compcoll {
namespace CC_LEVEL {
namespace zfp {

#if defined(__AVX512BW__)
// Whether all planes of 3-D blocks but the highest `top` are zero.
template <class L>
inline bool only_top(const L* x, int top) {
  constexpr int bits = 8 * sizeof(typename lanes<L>::word);
  auto zero = [](L v) { return !_mm512_test_epi64_mask(__m512i(v), __m512i(v)); };
  L any = {};
  for (int half = 0; half < 64; half += bits) any |= x[half + bits - top - 1];
  if (!zero(any)) return false;  // the likely one
  for (int half = 0; half < 64; half += bits)
    for (int k = 0; k < bits - top - 1; k++) any |= x[half + k];
  return zero(any);
}

// The bits of coefficient Top * c + m are bits Top * c to Top * c + Top - 1 of word m after the
// transposition of Top planes; they belong to the top of a word.
template <int Top, class L>
inline void spread_top(L* x) {
  constexpr int bits = 8 * sizeof(typename lanes<L>::word), word = bits / 8, field = Top / 8;
  L r[Top];
  for (int m = 0; m < Top; m++) r[m] = x[bits - Top + m];
  bit_transpose<Top>(r);
#pragma GCC unroll 8
  for (int c = 0; c < bits / Top; c++) {
    alignas(16) uint8_t from[16];
    for (int i = 0; i < 16; i++) {
      int behind = i % word - (word - field);
      from[i] = behind < 0 ? 128 : i / word * word + c * field + behind;
    }
    const __m512i source = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(from)));
    for (int m = 0; m < Top; m++) x[Top * c + m] = L(_mm512_shuffle_epi8(__m512i(r[m]), source));
  }
}

// As to_planes<3>, which is its own inverse.
template <class L>
inline void to_coefficients(L* x) {
  constexpr int bits = 8 * sizeof(typename lanes<L>::word);
  if (!only_top(x, 16)) return to_planes<3>(x);
  const bool few = only_top(x, 8);
  for (int half = 0; half < 64; half += bits) few ? spread_top<8>(x + half) : spread_top<16>(x + half);
}
#else
template <class L>
inline void to_coefficients(L* x) {
  to_planes<3>(x);
}
#endif

}  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
