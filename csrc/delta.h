// Differences to a base: values of the same type and size that the decoder has. Best if few words differ, or
// by little.
//
// An array is its bytes as little-endian words: 16-bit for types of 1 and 2 bytes, 64-bit if the real type
// has 8 bytes, else 32-bit. Blocks of 4096 bytes are independent; the last block is padded by zeros in both
// arrays. A pair is coded as the word w ^ b, or as the zigzag code of w - b: ..., -1, 0, 1, 2 become ..., 1,
// 0, 2, 4.
//
// The payload has two bytes for each block, the size of its code, and then the codes. A block that is equal
// in both arrays has size 0; 65535 means that its bytes are stored unchanged, the last block's without
// padding.
//
//   head       a byte: its lower six bits are r, the upper two the kind of positions
//   positions  0: a bit per 64 words (is any of them not 0?), then a byte for each of these 64 (which 8 of
//                 them have one?), then a byte for each of these 8 (which ones are not 0?)
//              1: a bit per word
//              2: none, each word is coded
//   low bits   of u, the nonzero words less 1, or in case 2 all words: r planes of a bit per word
//   the rest   w = (u >> r) + 1 for each word: a bit that says whether w > 1; for the words for which it is,
//              the lowest bit of w; then likewise for w >> 1 of these, until none is left
//
// Each run of bits begins at the lowest bit and is padded to whole bytes. A word with b bits above its r low
// ones takes about r + 1 + 2 b bits, as in an exponential Golomb code (Teuhola, IPL 7(6), 1978), but in
// planes, which vectors read and write in parallel.
#pragma once
#include "abi.h"

namespace compcoll {
namespace CC_LEVEL {

constexpr uint64_t delta_version = 1, delta_block_nbytes = 4096, delta_raw = 65535;
// In the first of the header's two words, beside the version.
constexpr uint64_t delta_is_difference = 256;
enum DeltaPositions : uint8_t { DELTA_SPARSE, DELTA_DENSE, DELTA_ALL };

CC_HD uint32_t delta_word_nbytes(uint32_t dtype) {
  if (dtype == INT64 || dtype == UINT64 || dtype == FLOAT64 || dtype == COMPLEX128) return 8;
  return itemsize(dtype) <= 2 ? 2 : 4;
}

}  // namespace CC_LEVEL
}  // namespace compcoll
