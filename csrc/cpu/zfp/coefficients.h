// From planes back to coefficients where only the highest planes hold anything, as at low rates.
#pragma once
#include "../../zfp_lanes.h"

namespace compcoll {
namespace CC_LEVEL {
namespace zfp {

#if defined(__AVX512BW__)
// The bits of coefficient Top * c + m are bits Top * c to Top * c + Top - 1 of word m after the
// transposition of Top planes; they belong to the top of a word. From coefficient Count on none is wanted.
template <int Top, int Count, class L>
inline void spread_top(L* x) {
  constexpr int bits = 8 * sizeof(typename lanes<L>::word), word = bits / 8, field = Top / 8;
  L r[Top];
  for (int m = 0; m < Top; m++) r[m] = x[bits - Top + m];
  bit_transpose<Top>(r);
  constexpr int fields = Top * (bits / Top) < Count ? bits / Top : (Count + Top - 1) / Top;
#pragma GCC unroll 8
  for (int c = 0; c < fields; c++) {
    alignas(16) uint8_t from[16];
    for (int i = 0; i < 16; i++) {
      int behind = i % word - (word - field);
      from[i] = behind < 0 ? 128 : i / word * word + c * field + behind;
    }
    const __m512i source = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(from)));
    for (int m = 0; m < Top; m++) x[Top * c + m] = L(_mm512_shuffle_epi8(__m512i(r[m]), source));
  }
}

// So many planes are read where only `top` of them hold anything.
template <class L>
inline int planes_read(int top) {
  constexpr int bits = 8 * sizeof(typename lanes<L>::word);
  return top <= 8 ? 8 : top <= 16 ? 16 : top <= 32 ? 32 : bits;
}

// As to_planes<3>, which is its own inverse, of the planes that are read and the first Count coefficients.
template <int Count, class L>
inline void to_coefficients(L* x, int top) {
  constexpr int bits = 8 * sizeof(typename lanes<L>::word);
  const int read = planes_read<L>(top);
  if (read == bits) return to_planes<3>(x);
  for (int half = 0; half < Count; half += bits)
    if (read == 8) spread_top<8, Count>(x + half);
    else if (read == 16) spread_top<16, Count>(x + half);
    else if constexpr (bits == 64) spread_top<32, Count>(x + half);
}
#else
template <int, class L>
inline void to_coefficients(L* x, int) {
  to_planes<3>(x);
}
#endif

}  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
