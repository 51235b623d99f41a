// decode_quads of zfp_quads.h for vectors: a plane that is cut off is corrected once, after all planes.
//
// After a block's end, zeros are read. They are correct for a plane that ends there, except within a scan:
// its 1 belongs where the bits ran out, but was put at the last coefficient.
#pragma once
#include <type_traits>

#include "../../zfp_quads.h"
#include "quad_steps.h"

namespace compcoll {
namespace CC_LEVEL {
namespace zfp {

// Moves such a 1 back. From its plane on, each plane has 4 bits, so the bits `over` that were read after the
// end tell its plane and how far the scan went too far; `lowest` is the last plane.
template <class L>
inline void settle_last(L* u, L over, int lowest) {
  using W = typename lanes<L>::word;
  using Int = typename LaneTypes<L>::Int;
  L k = (over >> W(2)) + W(lowest), far = over & 3;
  L bit = shift_left(shift_right(u[3], k) & 1, k);
  bit = Int(over) > 0 ? bit : L{};
  u[3] ^= far != 0 ? bit : L{};
  for (int i = 0; i < 3; i++) u[i] |= far == W(3 - i) ? bit : L{};
}

// Adds the planes of blocks to `planes`, 4 at a time, until all blocks have passed `end`. pos: first at the
// first nonzero plane, then after the last one. Returns the lowest plane.
template <int NW, class L>
inline int decode_planes(const L* words, L& pos, int end, L* planes) {
  using W = typename lanes<L>::word;
  L n = {}, marker = {};
  for (int lowest = 8 * sizeof(W) - 4, top = lowest;; lowest -= 4) {
    const L shift = L{} + W(lowest);
    L window = quad_peek<NW>(words, pos);
    if (lowest == top || any_less(n, L{} + W(3))) {
      for (int j = 3; j >= 0; j--) {
        bool first = j == 3 && lowest == top;
        L rest = window >> n;
        L entry = first ? lookup64(quad_tables.first, (window >> 1) & 63)
                        : lookup64(quad_tables.decode, (rest & (marker - 1)) | marker);
        L plane = (window & ~((L{} - 1) << n)) | (entry & 15);
        L length = (entry >> 4) & 7;
        window >>= length;
        pos += length;
        n = (entry >> 7) & 7;
        marker = entry >> 10;
        planes[j] |= plane << shift;
      }
    } else {  // n = 3 becomes 4 once the last coefficient has a bit; both have the same code
      for (int j = 3; j >= 0; j--) planes[j] |= ((window >> (12 - 4 * j)) & 15) << shift;
      pos += 16;
    }
    if (!lowest || !any_less(pos, L{} + W(end))) return lowest;
  }
}

// The best number of vectors of blocks to decode in parallel: with one, the processor idles because each
// plane depends on the one before.
template <class L>
constexpr int quad_group = 1;

#if defined(__AVX512BW__)
template <>
constexpr int quad_group<U32x16> = 2;
#endif

// Coefficients of G vectors of blocks with maxbits bits, of which `header` precede the planes, in words with
// zeros above. They are shifted up until the highest plane is not zero; `zeros` is the shift, or the width
// for a zero block.
template <int NW, int G, class L>
inline void decode_coefficients(const L (*words)[NW], int header, int maxbits, L (*planes)[4], L* zeros) {
  using W = typename lanes<L>::word;
  L pos[G];
  for (int g = 0; g < G; g++) {
    zeros[g] = trailing_zeros(quad_peek<NW>(words[g], L{} + W(header)));
    pos[g] = zeros[g] + W(header);
  }
  int lowest[G];
#if defined(__AVX512BW__)
  if constexpr (std::is_same_v<L, U32x16>) {
    lowest[0] = decode_quad_steps<NW, G>(words, pos, maxbits, planes);
    for (int g = 1; g < G; g++) lowest[g] = lowest[0];
  } else
#endif
    for (int g = 0; g < G; g++) lowest[g] = decode_planes<NW>(words[g], pos[g], maxbits, planes[g]);
  for (int g = 0; g < G; g++) {
    to_planes<1>(planes[g]);
    settle_last(planes[g], pos[g] - W(maxbits), lowest[g]);
  }
}

// Like the above, for one vector of blocks; returns `zeros`.
template <int NW, class L>
inline L decode_coefficients(const L (&words)[NW], int header, int maxbits, L (&planes)[4]) {
  L zeros;
  decode_coefficients<NW, 1>(&words, header, maxbits, &planes, &zeros);
  return zeros;
}

}  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
