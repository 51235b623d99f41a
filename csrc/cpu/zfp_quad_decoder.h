// decode_quads of zfp_quads.h for vectors: what a cut plane needs is done once, behind the planes.
//
// Behind a block's end zeros are read. They are what the decoder takes for a plane that ends there, except
// within a scan: that has to leave its 1 where the bits ran out, and leaves it at the last coefficient.
#pragma once
#include "../zfp_quads.h"

namespace compcoll {
namespace CC_LEVEL {
namespace zfp {

// Puts such a 1 back. From its plane on there are 4 bits to each, so the bits `over` that were read behind
// the end tell which plane it was and how far the scan went too far; `lowest` is the last plane.
template <class L>
inline void settle_last(L* u, L over, int lowest) {
  using W = typename lanes<L>::word;
  using Int = typename Lane<L>::Int;
  L k = (over >> W(2)) + W(lowest), far = over & 3;
  L bit = shift_left(shift_right(u[3], k) & 1, k);
  bit = Int(over) > 0 ? bit : L{};
  u[3] ^= far != 0 ? bit : L{};
  for (int i = 0; i < 3; i++) u[i] |= far == W(3 - i) ? bit : L{};
}

// Coefficients of blocks of maxbits bits, `header` of which precede the planes, in words with zeros above.
// They are moved up so that the highest plane is not zero; returns by how many, the width for a zero block.
template <int NW, class L>
inline L decode_coefficients(const L* words, int header, int maxbits, L* planes) {
  using W = typename lanes<L>::word;
  constexpr int bits = 8 * sizeof(W);
  L window = quad_peek<NW>(words, L{} + W(header));
  L zeros = trailing_zeros(window);
  L pos = zeros + W(header), n = {}, marker = {};
  const L end = L{} + W(maxbits);
  int lowest = bits;
  while (lowest > 0) {
    lowest -= 4;
    const L shift = L{} + W(lowest);
    window = quad_peek<NW>(words, pos);
    if (lowest == bits - 4 || any_less(n, L{} + W(3))) {
      for (int j = 3; j >= 0; j--) {
        bool first = j == 3 && lowest == bits - 4;
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
    } else {  // n = 3 becomes 4 as soon as the last coefficient has a bit, and both are the same code
      for (int j = 3; j >= 0; j--) planes[j] |= ((window >> (12 - 4 * j)) & 15) << shift;
      pos += 16;
    }
    if (!any_less(pos, end)) break;
  }
  to_planes<1>(planes);
  settle_last(planes, pos - end, lowest);
  return zeros;
}

}  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
