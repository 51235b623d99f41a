// The plane coder of zfp_planes.h for the 4 coefficients of a 1-D block, with one block in each lane. A plane
// is a nibble and the state n is 0 to 4, so one look-up codes a plane.
//
// Planes come from bit_transpose<4>: nibble g of word j is plane 4 g + j. Each block has NW words, least
// significant first, with zeros above the block's bits.
#pragma once
#include "zfp_lanes.h"

namespace compcoll {
namespace CC_LEVEL {
namespace zfp {

// Table entries have 7 bits of code, its length, the next n, and a marker above the index bits.
struct QuadTables {
  // Index: the plane from coefficient n on, below a 1 that encodes 4 - n. Entry: the index XOR its code,
  // without the first n bits (bits 0-6); length of the whole code (8-11); next n (28-30).
  uint32_t encode[32] = {};
  // For n > 0. Index: the 7 - 2 n bits after a plane's n bits, below a 1. Entry: the plane without its first
  // n bits (0-3), length of the whole code (4-6), next n (7-9), and the 1 above the next index (10-).
  uint16_t decode[64 + 2] = {};
  // Like `decode`, for n = 0. Index: 6 bits after a 1.
  uint16_t first[64 + 2] = {};
};

constexpr QuadTables make_quad_tables() {
  QuadTables t;
  for (int n = 0; n <= 4; n++) {
    int room = 4 - n;
    for (int rest = 0; rest < 1 << room; rest++) {
      int code = 0, length = 0, at = 0;
      while (at < room) {
        if (!(rest >> at)) {
          length++;
          break;
        }
        code |= 1 << length++;
        for (; at < room - 1 && !(rest >> at & 1); at++) length++;
        if (at < room - 1) code |= 1 << length++;
        at++;
      }
      int index = 1 << room | rest, next = n + at;
      t.encode[index] = (index ^ code) | (n + length) << 8 | uint32_t(next) << 28;
      // Every continuation of the code decodes to the same entry.
      int bits = n < 4 ? 7 - 2 * n : 0;
      for (int tail = 0; tail < 1 << (bits - length); tail++) {
        int seen = code | tail << length;
        int marker = next < 4 ? 1 << (7 - 2 * next) : 1;
        uint16_t entry = rest << n | (n + length) << 4 | next << 7 | marker << 10;
        if (n > 0) t.decode[1 << bits | seen] = entry;
        else if (seen & 1) t.first[seen >> 1] = entry;
      }
    }
  }
  return t;
}

#if !defined(__CUDACC__)
alignas(64) inline constexpr QuadTables quad_tables = make_quad_tables();
#endif

// Puts `value`, of at most one word, after the first `pos` bits.
template <int NW, class L>
CC_HD void quad_put(L* words, L value, L pos) {
  using W = typename lanes<L>::word;
  constexpr int bits = 8 * sizeof(W);
  words[0] |= shift_left(value, pos);
  for (int j = 1; j < NW; j++)
    words[j] |= shift_left(value, pos - W(j * bits)) | shift_right(value, W(j * bits) - pos);
}

// A word of bits starting at `pos`.
template <int NW, class L>
CC_HD L quad_peek(const L* words, L pos) {
  using W = typename lanes<L>::word;
  constexpr int bits = 8 * sizeof(W);
  L r = shift_right(words[0], pos);
  for (int j = 1; j < NW; j++)
    r |= shift_right(words[j], pos - W(j * bits)) | shift_left(words[j], W(j * bits) - pos);
  return r;
}

// Counts the completely stored planes.
template <class L>
struct Complete {
  L planes = {};

  CC_HD Complete(L = {}, int = 0) {}
  // Called after a plane: `used` bits have been added since `left` bits were free. The last argument is the
  // next n.
  CC_HD void pass(L used, L left, L) { planes = count_up_to(planes, used, left); }
};

// Appends planes to words that hold `header` bits, until maxbits are reached or exceeded; the caller masks
// off the excess. n: 0, or 4 for zero blocks, so that these delay no other lane. `complete` is called for
// each plane.
template <int NW, class L, class Planes>
CC_HD void encode_quads(const L* planes, L n, int header, int maxbits, const QuadTables& tables, L* words,
                        Planes& complete) {
  using W = typename lanes<L>::word;
  constexpr int bits = 8 * sizeof(W);
  const L end = L{} + W(maxbits);
  L pos = L{} + W(header);
  for (int shift = bits - 4; shift >= 0; shift -= 4) {
    L local = {}, used = {}, left = end - pos;
    if (any_less(n, L{} + W(3))) {
      for (int j = 3; j >= 0; j--) {
        L plane = ((planes[j] >> (L{} + W(shift))) & 15) | 16;
        L entry = lookup32(tables.encode, plane >> n);
        L code = plane ^ ((entry & 127) << n);
        local |= code << used;
        used += (entry >> 8) & 15;
        n = entry >> 28;
        complete.pass(used, left, n);
      }
    } else {  // from n = 3 on, a plane is its own code
      for (int j = 3; j >= 0; j--) {
        L plane = (planes[j] >> (L{} + W(shift))) & 15;
        local |= plane << (12 - 4 * j);
        used += 4;
        complete.pass(used, left, n);
      }
    }
    quad_put<NW>(words, local, pos);
    pos += used;
    if (!any_less(pos, end)) break;
  }
}

// Like the above; returns the lowest complete plane.
template <int NW, class L>
CC_HD L encode_quads(const L* planes, L n, int maxbits, const QuadTables& tables, L* words) {
  using W = typename lanes<L>::word;
  Complete<L> complete(n, maxbits);
  encode_quads<NW>(planes, n, Format<W>::header, maxbits, tables, words, complete);
  return W(8 * sizeof(W)) - complete.planes;
}

// Coefficients of a block, transposed, from words with zeros from maxbits on. The planes are shifted up until
// the first nonzero one is the highest; returns the shift, or the width for a zero block.
template <int NW, class L>
CC_HD L decode_quads(const L* words, int maxbits, const QuadTables& tables, L* planes) {
  using W = typename lanes<L>::word;
  constexpr int bits = 8 * sizeof(W);
  constexpr W header = Format<W>::header;
  L window = quad_peek<NW>(words, L{} + header);
  L zeros = trailing_zeros(window);
  L pos = zeros + header, n = {}, marker = {};
  const L end = L{} + W(maxbits);
  for (int shift = bits - 4; shift >= 0; shift -= 4) {
    window = quad_peek<NW>(words, pos);
    L left = end - pos;
    if (shift == bits - 4 || any_less(n, L{} + W(3))) {
      for (int j = 3; j >= 0; j--) {
        bool first = j == 3 && shift == bits - 4;
        L rest = window >> n;
        L entry = first ? lookup64(tables.first, (window >> 1) & 63)
                        : lookup64(tables.decode, (rest & (marker - 1)) | marker);
        L plane = (window & ~((L{} - 1) << n)) | (entry & 15);
        L length = (entry >> 4) & 7;
        window >>= length;
        left -= length;
        n = (entry >> 7) & 7;
        marker = entry >> 10;
        planes[j] |= move_cut_scan(plane, left) << (L{} + W(shift));
      }
      pos = end - left;
    } else {
      for (int j = 3; j >= 0; j--) { planes[j] |= ((window >> (12 - 4 * j)) & 15) << (L{} + W(shift)); }
      pos += 16;
      // n = 3 becomes 4 once the last coefficient has a bit; both have the same code.
    }
    if (!any_less(pos, end)) break;
  }
  return zeros;
}

}  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
