// ZFP's transform of N blocks in 2 and 3 dimensions, in place: coefficients stay in coding order throughout.
// A second array would be a multiple of 4 KiB away, where loads wait for stores that only seem to go to the
// same address.
#pragma once
#include "../../zfp_lanes.h"

namespace compcoll {
namespace CC_LEVEL {
namespace zfp {

template <int D>
inline constexpr Places<D> places;

// The index at which the value of a position is kept.
template <int D>
constexpr int kept(int place) {
  return places<D>.at[place];
}

// Quantised values to negabinary coefficients.
template <int D, class L>
inline void forward_blocks(L* x, L scale) {
#pragma GCC unroll 4
  for (int slab = 0; slab < 1 << 2 * D; slab += 16) {
    L v[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) v[i] = quantise(x[kept<D>(slab + i)], scale);
    for (int i = 0; i < 16; i += 4) lift_forward(v[i], v[i + 1], v[i + 2], v[i + 3]);
    for (int i = 0; i < 4; i++) lift_forward(v[i], v[i + 4], v[i + 8], v[i + 12]);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) x[kept<D>(slab + i)] = D == 2 ? negabinary(v[i]) : v[i];
  }
  if constexpr (D == 3)
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
      L &a = x[kept<D>(i)], &b = x[kept<D>(i + 16)], &c = x[kept<D>(i + 32)], &d = x[kept<D>(i + 48)];
      lift_forward(a, b, c, d);
      a = negabinary(a), b = negabinary(b), c = negabinary(c), d = negabinary(d);
    }
}

// The inverse, for coefficients times 2^zeros; use(z, values) receives the 16 integers of each z, whose rows
// of 4 are not lifted yet.
template <int D, class L, class Use>
inline void inverse_blocks(L* x, L zeros, Use use) {
  auto integer = [&](int place) { return from_negabinary(shift_right(x[kept<D>(place)], zeros)); };
  if constexpr (D == 3)
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
      L a = integer(i), b = integer(i + 16), c = integer(i + 32), d = integer(i + 48);
      lift_inverse(a, b, c, d);
      x[kept<D>(i)] = a, x[kept<D>(i + 16)] = b, x[kept<D>(i + 32)] = c, x[kept<D>(i + 48)] = d;
    }
#pragma GCC unroll 4
  for (int slab = 0; slab < 1 << 2 * D; slab += 16) {
    L v[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) v[i] = D == 2 ? integer(i) : x[kept<D>(slab + i)];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) lift_inverse(v[i], v[i + 4], v[i + 8], v[i + 12]);
    use(slab / 16, v);
  }
}

}  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
