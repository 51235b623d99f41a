// MPC, lossless, format v1.2 (Yang, Mukka, Hesaaraki, Burtscher: MPC, a massively parallel compression
// algorithm for scientific data, CLUSTER 2015). Error bound: 0.
//
// Words of W = 32 or 64 bits; the last one of the array is zero-padded. Little-endian.
//   W = 32: uint32 0x63706d00 | (dim - 1), uint32 n;   W = 64: uint64 n << 32 | 0x43504d00 | (dim - 1)
//   bitmap, ceil(n / W) words: bit set = this word is not zero after stage 3, least significant first
//   the nonzero words, block by block
// A block is 1024 words, independent of all others, the last block zero-padded. Its stages are
//   1. w[i] -= w[i - dim] for i >= dim; padding stays 0
//   2. W words are a W x W bit matrix, transposed: bit i of out[k] = bit k of in[i]
//   3. w[i] -= w[i - 1]
//   4. zeros are left out
// The bitmap ends with the last group of W words that holds data. If all-zero groups follow it in its block,
// the first word of the first such group (minus the word before it) is written if it is not zero, although it
// has no bit in the bitmap; a decoder skips it.
#pragma once
#include "config.h"
#include "lanes.h"

namespace compcoll {
namespace CC_LEVEL {
namespace mpc {

constexpr uint32_t block_words = 1024;
constexpr uint32_t max_dim = 32;
constexpr uint32_t header_nbytes = 8;

template <class W>
constexpr uint32_t bits = 8 * sizeof(W);

CC_HD uint64_t header(uint32_t, uint64_t n, uint32_t dim) { return n << 32 | 0x63706d00u | (dim - 1); }
CC_HD uint64_t header(uint64_t, uint64_t n, uint32_t dim) { return n << 32 | 0x43504d00u | (dim - 1); }

// Mask of the bits whose index has bit j clear: 0x0000ffff, 0x00ff00ff, ... for j = 16, 8, ...
template <class W>
CC_HD constexpr W low_half(uint32_t j) {
  return W(~W(0)) / W((W(1) << j) + 1);
}

// One exchange of the transposition: words whose indices differ only in bit j swap the bits at which row and
// column differ. Doing this for every j = W/2 ... 1, in any order, transposes the matrix.
template <class W, class L>
CC_HD void exchange(L& word, L& word_plus_j, uint32_t j) {
  L t = ((word >> j) ^ word_plus_j) & low_half<W>(j);
  word_plus_j ^= t;
  word ^= t << j;
}

// Transposes W words in place: one matrix, or one in each lane.
template <class W, class L>
CC_HD void transpose(L* w) {
  for (uint32_t j = bits<W> / 2; j; j /= 2)
    for (uint32_t i = 0; i < bits<W>; i++)
      if (!(i & j)) exchange<W>(w[i], w[i + j], j);
}

}  // namespace mpc
}  // namespace CC_LEVEL
}  // namespace compcoll
