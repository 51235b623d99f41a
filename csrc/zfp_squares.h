// The plane coder of zfp_planes.h for the 16 coefficients of a 2-D block, with one block in each lane.
//
// From the first group test of a plane on, each coefficient is coded in turn: 0 as 0, and 1 as a 1 with the
// next test. The last test is 0; if it concerns the last coefficient, neither the test nor that coefficient
// is stored. So a plane expands nibble by nibble, and shrinks by 5 bits at a time.
//
// Planes come from bit_transpose<16>: 16 bits of plane 16 g + j are at bit 16 g of word j. Blocks are stored
// in words, least significant first, with zeros above the block's bits.
#pragma once
#include "zfp_lanes.h"

namespace compcoll {
namespace CC_LEVEL {
namespace zfp {

struct SquareTables {
  uint8_t code[16] = {};   // code of a nibble: 4 bits, and one more for each 1
  uint8_t ones[16] = {};
  // By 5 bits of a stream: data (bits 0-4), number of data bits (8-10), bits consumed (12-14); bit 31: a test
  // was 0.
  uint32_t decode[32] = {};
};

constexpr SquareTables make_square_tables() {
  SquareTables t;
  for (int nibble = 0; nibble < 16; nibble++) {
    int length = 0;
    for (int i = 0; i < 4; i++) {
      int bit = nibble >> i & 1;
      t.code[nibble] |= bit << length | (bit << 1) << length;
      length += 1 + bit;
      t.ones[nibble] += bit;
    }
  }
  for (int bits = 0; bits < 32; bits++) {
    int at = 0, n = 0;
    uint32_t data = 0, end = 0;
    while (at < 5 && !end) {
      bool one = bits >> at & 1;
      if (one && at == 4) break;
      if (one) end = bits >> (at + 1) & 1 ? 0 : 1;
      data |= uint32_t(one) << n++;
      at += 1 + one;
    }
    t.decode[bits] = data | n << 8 | at << 12 | end << 31;
  }
  return t;
}

#if !defined(__CUDACC__)
alignas(64) inline constexpr SquareTables square_tables = make_square_tables();
#endif

// A bit string per lane, in words of lanes. Only words that some lane has reached are accessed.
template <class L>
struct LaneBits {
  using W = typename lanes<L>::word;
  static constexpr int bits = 8 * sizeof(W);
  L* words;
  int n;          // words
  int first = 0;  // all lanes are at this word or after it

  // value: at most one word, of `length` bits.
  CC_HD void put(L value, L pos, L length) {
    advance(pos);
    L end = pos + length;
    for (int j = first; j < n && any_less(L{} + W(j * bits), end); j++)
      words[j] |= shift_left(value, pos - W(j * bits)) | shift_right(value, W(j * bits) - pos);
  }

  CC_HD L peek(L pos) {
    advance(pos);
    L r = {}, end = pos + W(bits);
    for (int j = first; j < n && any_less(L{} + W(j * bits), end); j++)
      r |= shift_right(words[j], pos - W(j * bits)) | shift_left(words[j], W(j * bits) - pos);
    return r;
  }

  CC_HD void advance(L pos) {
    while (first < n && !any_less(pos, L{} + W((first + 1) * bits))) first++;
  }
};

template <class L>
CC_HD L below(L n) {  // n ones
  return ~shift_left(L(L{} - 1), n);
}

// The 4 low nibbles of v as bytes, for look-ups in a table of 16.
template <class L>
CC_HD L nibbles_to_bytes(L v) {
  v = (v | v << 8) & 0x00ff00ff;
  return (v | v << 4) & 0x0f0f0f0f;
}

template <class L>
CC_HD L ones16(L v, const SquareTables& tables) {  // v < 2^16
  L bytes = lookup16(tables.ones, nibbles_to_bytes(v));
  bytes += bytes >> 16;
  return (bytes + (bytes >> 8)) & 31;
}

// Doubles each 1 of v < 2^16; ones: their number.
template <class L>
CC_HD L expand16(L v, const SquareTables& tables, L& ones) {
  L nibbles = nibbles_to_bytes(v);
  L code = lookup16(tables.code, nibbles), sum = lookup16(tables.ones, nibbles);
  sum += sum << 8;
  sum += sum << 16;  // byte i: the ones of nibbles 0 to i
  ones = (sum >> 24) & 31;
  L to = sum + 0x000c0804;
  return (code & 255) | ((code >> 8) & 255) << (to & 31) | ((code >> 16) & 255) << ((to >> 8) & 31) |
         ((code >> 24) & 255) << ((to >> 16) & 31);
}

// Appends planes to words that hold the header, until maxbits are reached or exceeded; the caller masks off
// the excess. n: 0, or 16 for zero blocks, so that these delay no other lane. Returns the lowest complete
// plane.
template <class L>
CC_HD L encode_squares(const L* planes, L n, int maxbits, const SquareTables& tables, LaneBits<L> out) {
  using W = typename lanes<L>::word;
  constexpr int bits = 8 * sizeof(W);
  const L end = L{} + W(maxbits), all = L{} + W(16);
  L pos = L{} + W(Format<W>::header), complete = {};
  for (int k = bits - 1; k >= 0; k--) {
    L plane = (planes[k % 16] >> (L{} + W(k / 16 * 16))) & 0xffff, length = all;
    if (any_less(n, all)) {
      L rest = plane >> n;
      auto some = rest != 0;
      L top = log2_16(rest), ones;
      L code = expand16(rest ^ shift_left(L{} + 1, top), tables, ones);
      L stored = top + ones;
      auto last = n + top == 15;
      L suffix = code << 1 | 1 | shift_left(L(last ? L{} : L{} + 2), stored);
      L test = n < 16 ? L{} + 1 : L{};
      length = n + (some ? stored + (last ? L{} + 1 : L{} + 3) : test);
      plane = (plane & below(n)) | (some ? suffix << n : L{});
      n = some ? n + top + 1 : n;
    }
    complete = count_up_to(complete, length, end - pos);
    out.put(plane, pos, length);
    pos += length;
    if (!any_less(pos, end)) break;
    pos = pos < end ? pos : end;
  }
  return W(bits) - complete;
}

// Reads planes from words with zeros from maxbits on.
template <class L>
CC_HD void decode_squares(LaneBits<L> in, int maxbits, const SquareTables& tables, L* planes) {
  using W = typename lanes<L>::word;
  constexpr int bits = 8 * sizeof(W);
  const L end = L{} + W(maxbits), all = L{} + W(16);
  // Zero blocks start at their end.
  L pos = (in.words[0] & 1) != 0 ? L{} + W(Format<W>::header) : end;
  L n = {};
  for (int k = bits - 1; k >= 0; k--) {
    L window = in.peek(pos), length = all, plane = window & 0xffff;
    if (any_less(n, all)) {
      L rest = window >> n, data = {}, count = {}, ended = {};
      const L room = L{} + 15 - n;
      auto some = ((rest & 1) != 0) & (n < 16);
      L goal = some ? room : L{};
      for (rest >>= 1; any_less(count, goal);) {
        L entry = lookup32(tables.decode, rest & 31);
        data |= shift_left(entry & 31, count);
        count += (entry >> 8) & 7;
        rest >>= (entry >> 12) & 7;
        L stop = entry >> 31;
        ended |= stop;
        goal = stop != 0 ? L{} : goal;
        rest = stop != 0 ? L{} : rest;
      }
      L top = log2_16(data & 0xffff);
      // A test after the last coefficient belongs to the next plane.
      auto implied = (ended == 0) | (shift_right(data, room) != 0);
      data &= below(room);
      L stored = (implied ? room : top + 1) + ones16(data, tables) + 1;
      L test = n < 16 ? L{} + 1 : L{};
      length = n + (some ? stored : test);
      // If a scan reaches the end, its 1 stays at that position.
      L over = pos + length - end;
      using Int = typename LaneTypes<L>::Int;
      L at = Int(over) > 0 ? room - over : room;
      data = implied ? data | shift_left(L{} + 1, at) : data;
      plane = (window & below(n)) | (some ? data << n : L{});
      n = some ? (implied ? all : n + top + 1) : n;
    }
    planes[k % 16] |= plane << (L{} + W(k / 16 * 16));
    pos += length;
    if (!any_less(pos, end)) break;
    pos = pos < end ? pos : end;
    n = pos < end ? n : all;
  }
}

}  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
