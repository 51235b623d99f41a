// Decoded values of 1-D blocks from the encoded coefficients, without reading the stream.
//
// All planes but one are stored in full or not at all. For the plane that is cut off, the decoder sees the
// first bits of its code; a scan that was cut puts a 1 where the bits ran out.
#pragma once
#include "../../zfp_quads.h"

namespace compcoll {
namespace CC_LEVEL {
namespace zfp {

// Nibble r of an entry: the plane, without its first n bits, that is decoded from the first r bits after its
// n verbatim ones. Index: the plane from coefficient n on, below a 1 that encodes 4 - n.
struct CutTable { uint32_t at[32] = {}; };

constexpr CutTable make_cut_table() {
  CutTable t;
  for (int room = 0; room <= 4; room++)
    for (int rest = 0; rest < 1 << room; rest++)
      for (uint32_t r = 0; r < 8; r++) {
        uint32_t seen = 0;
        for (int at = 0, left = r; at < room && left > 0 && (left--, rest >> at); at++) {
          for (; at < room - 1 && left > 0 && (left--, !(rest >> at & 1)); at++) {}
          seen |= 1u << at;
        }
        t.at[1 << room | rest] |= seen << 4 * r;
      }
  return t;
}
alignas(64) inline constexpr CutTable cut_table = make_cut_table();

// `Complete`, plus the state at the start of the cut plane and the bits it has.
template <class L>
struct Cut {
  L planes = {}, n, left;

  Cut(L n, int maxbits) : n(n), left(L{} + (maxbits - Format<typename lanes<L>::word>::header)) {}

  void pass(L used, L room, L next) {
    auto fits = typename LaneTypes<L>::Int(used) <= typename LaneTypes<L>::Int(room);
    planes = fits ? planes + 1 : planes;
    n = fits ? next : n;
    left = fits ? room - used : left;
  }

  // Turns negabinary coefficients into those that a decoder gets.
  void truncate(L* u) const {
    using W = typename lanes<L>::word;
    constexpr W bits = Format<W>::bits;
    const L one = L{} + 1, low = bits - planes, at = low - 1;  // beyond the word if no plane is cut
    L plane = {};
    for (int i = 0; i < 4; i++) plane |= (shift_right(u[i], at) & 1) << W(i);
    const L whole = n < left ? n : left, scanned = left - whole;
    L rest = lookup32(cut_table.at, ((plane | 16) >> n));
    L seen = (plane & ((one << whole) - 1)) | (shift_right(rest, scanned << 2) & 15) << n;
    for (int i = 0; i < 4; i++) u[i] = (u[i] & shift_left(~L{}, low)) | shift_left((seen >> W(i)) & 1, at);
  }
};

}  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
