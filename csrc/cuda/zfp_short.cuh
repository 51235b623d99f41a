// The plane coder of zfp_quads.h for one thread and blocks of at most 64 bits: a look-up codes two planes.
#pragma once
#include "../zfp_quads.h"
#include "bits.cuh"

namespace compcoll {
namespace CC_LEVEL {
namespace cuda {

// Index: 256 n + two planes, with coefficient i in bits 2 i (lower plane) and 2 i + 1 (upper plane). The
// latter is inverted, as in a number that is converted to negabinary by XOR with a mask of the odd planes.
struct alignas(16) PairTable {
  static constexpr uint32_t n = 5 * 256;
  // Length of both codes (bits 0-4), next n (8-15), a 1 that counts pairs (16), the codes from bit 31 down.
  // Lengths and ones are summed; the bits above their sums are masked off at the end.
  uint32_t entry[n] = {};
  uint8_t second[n] = {};  // length of the second plane's code
};

constexpr PairTable make_pair_table() {
  PairTable t;
  const zfp::QuadTables quads = zfp::make_quad_tables();
  for (uint32_t i = 0; i < PairTable::n; i++) {
    uint32_t n = i / 256, codes = 0, length = 0, last = 0;
    for (uint32_t odd = 2; odd-- > 0;) {
      uint32_t plane = 16;
      for (uint32_t k = 0; k < 4; k++) plane |= ((i >> (2 * k + odd) & 1) ^ odd) << k;
      const uint32_t quad = quads.encode[plane >> n];
      last = quad >> 8 & 15;
      const uint32_t code = (plane ^ (quad & 127) << n) & ((1u << last) - 1);
      for (uint32_t k = 0; k < last; k++) codes |= (code >> k & 1) << (31 - length - k);
      length += last;
      n = quad >> 28;
    }
    t.entry[i] = length | n << 8 | 1u << 16 | codes;
    t.second[i] = uint8_t(last);
  }
  return t;
}

// Number of pairs that fill a block of this many words. The largest coefficient is at least 4/15 of the
// largest value, so at most 4 planes have no 1. These take a bit each, the first plane with a 1 takes 3, and
// others take 2.
constexpr int pair_count(int words) { return words == 1 ? 7 : 15; }

// Swaps bit i of `low` with bit i - S of `high`, for each i that has the bit S.
template <uint32_t S>
CC_HD void exchange(uint32_t& low, uint32_t& high) {
  constexpr uint32_t mask = ~0u / ((1u << S) + 1);  // S ones, S zeros, from bit 0 up
  const uint32_t l = low, h = high;
  low = select_bits(mask, l, h << S);
  high = select_bits(mask, l >> S, h);
}

// The 32 highest planes of coefficients, as bytes of two planes: the highest in byte 3 of pairs[3], [2], [1],
// [0], then byte 2 of pairs[3] and so on.
CC_HD void to_pairs(uint32_t* pairs) {
  exchange<4>(pairs[0], pairs[2]);
  exchange<4>(pairs[1], pairs[3]);
  exchange<2>(pairs[0], pairs[1]);
  exchange<2>(pairs[2], pairs[3]);
}

// The 16 highest planes: the highest in byte 3 of pairs[1] and [0], then bytes 1, 2 and 0 of both.
CC_HD void to_pairs_high(const uint32_t* u, uint32_t* pairs) {
  pairs[0] = permute_bytes(u[0], u[2], 0x7632);
  pairs[1] = permute_bytes(u[1], u[3], 0x7632);
  exchange<2>(pairs[0], pairs[1]);
  for (int i = 0; i < 2; i++) {  // swap the second nibbles of the lower half with the first ones above
    const uint32_t v = pairs[i];
    pairs[i] = select_bits(0x0000f0f0, v >> 12, select_bits(0x0f0f0000, v << 12, v));
  }
}

// Properties of a coded block, for its words and its error bound.
struct Coded {
  uint32_t overshoot;  // bits of codes after the block's end
  uint32_t dropped;    // incomplete planes of the last pair
  uint32_t pairs;      // including the last one
};

// Pairs that always fit into N words: p planes take at most 4 p + 3 bits.
constexpr int sure_pairs(int words, int header) { return (32 * words - header - 4) / 8; }

// Codes planes, before their odd ones are inverted, into N words whose highest bit is the block's last. sure:
// number of pairs after which the block cannot be full.
template <int N, int sure>
CC_HD Coded encode_short(const uint32_t* u, uint32_t room, const PairTable& table, uint32_t* code) {
  constexpr uint32_t end = 32 * N;  // pos has this bit once the block is full, because no pair has 32
  uint32_t words[2 * N];
  if constexpr (N == 1) {
    to_pairs_high(u, words);
  } else {
    for (int i = 0; i < 4; i++) words[i] = u[i];
    to_pairs(words);
  }
  uint32_t pos = end - room, entry = 0, index = 0, high = 0, low = 0;
#pragma unroll
  for (int t = 0; t < pair_count(N); t++) {
    if (t > sure && pos & end) break;
    constexpr uint32_t order[] = {3, 1, 2, 0};
    const uint32_t byte = N == 1 ? order[t / 2] : 3 - t / 4;
    index = permute_bytes(words[2 * N - 1 - t % (2 * N)], entry, 0xdd50 | byte);
    entry = table.entry[index];
    if (N > 1) high = __funnelshift_l(low, high, entry);
    low = __funnelshift_l(entry, low, entry);
    pos += entry;
  }
  Coded coded;
  coded.overshoot = pos & 31;
  const uint32_t second = table.second[index];  // negative differences are large
  coded.dropped = ((0 - coded.overshoot) >> 31) + ((second - coded.overshoot) >> 31);
  coded.pairs = pos >> 16 & 31;
  // Reverses the codes, so that the first bit is the lowest; they end at the highest bit.
  if constexpr (N == 1) {
    code[0] = reverse_bits(low) << coded.overshoot;
  } else {
    code[1] = __funnelshift_l(reverse_bits(high), reverse_bits(low), coded.overshoot);
    code[0] = reverse_bits(high) << coded.overshoot;
  }
  return coded;
}

template <int N>
CC_HD void move_down(uint32_t* words, uint32_t by) {  // by less than all bits
  if (N > 1 && by >= 32) words[0] = words[1], words[1] = 0;
  for (int i = 0; i < N; i++) words[i] = __funnelshift_r(words[i], i + 1 < N ? words[i + 1] : 0, by);
}

}  // namespace cuda
}  // namespace CC_LEVEL
}  // namespace compcoll
