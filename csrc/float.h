// Lossless coding of floating-point numbers: exponents get a prefix code, everything else is stored. Error
// bound: 0, for every bit pattern. Complex numbers are pairs of reals. Little-endian throughout.
//
// Payload
//   uint32 end[chunks], zero-padded to 8 bytes: the end of each chunk, in units of 8 bytes from the
//   payload's start, so that each chunk can be found directly; then the chunks.
// Chunk: 32 KiB of values (16384 of 16 bits, 8192 of 32, 4096 of 64), fewer at the end of the array
//   Each value becomes 2 to 8 bytes, of which the first is the exponent (`Format`); the first bytes of all
//   values are plane 0, and so on. For each plane two bytes, varying and base, zero-padded to 8; then the
//   planes, each zero-padded to 8 bytes:
//     base = varying = 255     coded, below
//     varying = 255            the n bytes unchanged
//     other                    for each bit set in varying, lowest first, ceil(n / 64) words of 64 bits
//                              with this bit of all values; the other bits are those of base
// Coded plane: `CodeHeader`, then for d = 0 ... longest - 1 bit d (first bit first) of the codes longer than
//   d bits, packed, lowest bit first, each zero-padded to bytes; then the bytes that have no code, one for
//   each escape.
//   The code is a canonical Huffman code of at most 16 symbols, the escape included.
//
// Because first bits, second bits and so on have planes of their own, no value's position depends on decoding
// the value before: a processor deposits 64 bits at a time at the unfinished values, a GPU counts them with
// ballots.
#pragma once
#include "abi.h"
#include "lanes.h"

namespace compcoll {
namespace CC_LEVEL {
namespace floats {

constexpr uint32_t version = 1;
constexpr uint32_t chunk_nbytes = 32768;
constexpr uint32_t max_depth = 7;  // longest code, bits: one more gains 0.2 % and costs a plane
constexpr uint32_t max_symbols = 16;  // including the escape
constexpr uint32_t sample_stride = 16;  // the code is made from one in 16 groups of 64 values

struct PlaneHeader { uint8_t varying, base; };

struct CodeHeader {
  uint8_t leaves[max_depth];  // codes of 1, 2, ... 7 bits
  uint8_t escape;  // the escape's position in the order of codes
  uint8_t symbol[max_symbols];  // in that order; 0 for the escape and after the last symbol
  uint16_t open[max_depth];  // values whose code has more than d bits
  uint16_t escapes;
  uint8_t zero[8];
};
static_assert(sizeof(CodeHeader) == 48);

// The map from a value to the bytes of the planes: `turn` moves the bits of a word (of any lane type L) so
// that each of its bytes is a plane, the most significant first; `turn_back` is the inverse. Only float16 has
// one plane more than bytes, see there.
template <uint32_t dtype>
struct Format;

template <class W>
struct RotatedFormat {  // 8 bits of exponent, mantissa, sign
  using Word = W;
  static constexpr uint32_t planes = sizeof(W);
  template <class L> static CC_HD L turn(L x) { return x << 1 | x >> (8 * sizeof(W) - 1); }
  template <class L> static CC_HD L turn_back(L x) { return x >> 1 | x << (8 * sizeof(W) - 1); }
};
template <> struct Format<BFLOAT16> : RotatedFormat<uint16_t> {};
template <> struct Format<FLOAT32> : RotatedFormat<uint32_t> {};

template <>
struct Format<FLOAT16> {  // unchanged: sign, 5 bits of exponent, 2 of mantissa; 8 of mantissa
  using Word = uint16_t;
  // The upper byte makes two planes, first the exponent, then sign and mantissa together; the lower byte is
  // the third.
  static constexpr uint32_t planes = 3;
  template <class L> static CC_HD L turn(L x) { return x; }
  template <class L> static CC_HD L turn_back(L x) { return x; }
  template <class L> static CC_HD L exponent(L upper) { return upper >> 2 & 31; }
  template <class L> static CC_HD L others(L upper) { return (upper >> 5 & 4) | (upper & 3); }
  template <class L> static CC_HD L upper(L exponent, L others) {
    return (exponent & 31) << 2 | (others & 4) << 5 | (others & 3);
  }
};

template <>
struct Format<FLOAT64> {  // low byte of the biased exponent; its upper 3 bits, sign, mantissa
  using Word = uint64_t;
  static constexpr uint32_t planes = 8;
  static constexpr uint64_t bias = 1023 - 128;  // exponents from -128 to 127 have the same upper bits
  static constexpr uint64_t mantissa = (1ull << 52) - 1;
  template <class L> static CC_HD L turn(L x) {
    L e = (x >> 52) - bias;
    return e << 56 | (e >> 8 & 7) << 53 | x >> 63 << 52 | (x & mantissa);
  }
  template <class L> static CC_HD L turn_back(L x) {
    L e = ((x >> 56) | (x >> 53 & 7) << 8) + bias;
    return (x >> 52) << 63 | (e & 0x7ff) << 52 | (x & mantissa);
  }
};

template <uint32_t dtype>
constexpr uint32_t chunk_values = chunk_nbytes / sizeof(typename Format<dtype>::Word);

// Number of codes of each length for n >= 2 weights in descending order: Huffman's algorithm with two queues.
// Small weights are raised until no code is longer than max_depth; the result is within 0.1 % of the best
// code of limited length.
CC_HD void code_lengths(const uint32_t* weight, uint32_t n, uint32_t total, uint8_t* leaves) {
  for (uint32_t least = 0;; least += (total >> (max_depth + 2)) + 1) {
    uint32_t sum[max_symbols] = {}, depth[max_symbols] = {};
    uint8_t leaf_parent[max_symbols] = {}, parent[max_symbols] = {};
    uint32_t leaf = n, node = 0, deepest = 0;
    for (uint32_t made = 0; made < n - 1; made++)
      for (int k = 0; k < 2; k++) {
        uint32_t w = leaf ? (weight[leaf - 1] > least ? weight[leaf - 1] : least) : 0;
        if (leaf && (node == made || w <= sum[node])) {
          sum[made] += w;
          leaf_parent[--leaf] = uint8_t(made);
        } else {
          sum[made] += sum[node];
          parent[node++] = uint8_t(made);
        }
      }
    for (uint32_t d = 0; d < max_depth; d++) leaves[d] = 0;
    for (uint32_t i = n - 2; i-- > 0;) depth[i] = depth[parent[i]] + 1;
    for (uint32_t i = 0; i < n; i++) {
      uint32_t d = depth[leaf_parent[i]];
      deepest = d > deepest ? d : deepest;
      if (d < max_depth) leaves[d]++;
    }
    if (deepest < max_depth) return;
  }
}

// Sort key of bytes, 0 for a count of 0: among equal counts, the smaller byte comes first.
CC_HD uint32_t rank_key(uint32_t byte, uint32_t count) { return count ? count << 8 | (255 - byte) : 0; }

// Makes the code for `total` bytes from the commonest ones, whose keys are in descending order, and the
// escape. Returns the number of bits for those bytes.
CC_HD uint32_t make_code(const uint32_t (&key)[max_symbols - 1], uint32_t total, CodeHeader& code) {
  uint32_t weight[max_symbols], n = 0, rest = total, used = 0;
  for (; n < max_symbols - 1 && key[n]; n++) rest -= key[n] >> 8;
  uint32_t rare = rest ? rest : 1, escape = n;
  while (escape && key[escape - 1] >> 8 < rare) escape--;
  for (uint32_t i = 0; i < max_symbols; i++) code.symbol[i] = 0;
  for (uint32_t i = 0; i < n; i++) {
    uint32_t at = i + (i >= escape);
    code.symbol[at] = uint8_t(255 - (key[i] & 255));
    weight[at] = key[i] >> 8;
  }
  weight[escape] = rare;
  code.escape = uint8_t(escape);
  code_lengths(weight, n + 1, total, code.leaves);
  for (uint32_t d = 0, i = 0; d < max_depth; d++)
    for (uint32_t k = 0; k < code.leaves[d]; k++, i++) used += (i == escape ? rest : weight[i]) * (d + 1);
  return used + 8 * rest;
}

#if !defined(__CUDACC__)
inline uint32_t make_code_of(const uint32_t* count, uint32_t total, CodeHeader& code) {
  uint32_t key[max_symbols - 1] = {};
  for (uint32_t s = 0; s < 256; s++) {
    const uint32_t k = rank_key(s, count[s]);
    uint32_t i = max_symbols - 2;
    if (k < key[i]) continue;
    for (; i && key[i - 1] < k; i--) key[i] = key[i - 1];
    key[i] = k;
  }
  return make_code(key, total, code);
}
#endif

}  // namespace floats
}  // namespace CC_LEVEL
}  // namespace compcoll
