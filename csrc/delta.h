// Differences to values that the decoder has: the base, of the same type and size. Few words differ, or by little.
//
// An array is its bytes as little-endian words, 16-bit of types of 1 and 2 bytes, 64-bit of those whose real type
// has 8 bytes, else 32-bit, in independent blocks of 4096 bytes; the last block is padded by zeros in both arrays.
// The word that stands for a pair is w ^ b, or the zigzag code of w - b: ..., -1, 0, 1, 2 become ..., 1, 0, 2, 4.
//
// The payload has for each block two bytes, the bytes of its code, and then the codes. A block that is equal in
// both arrays has none; 65535 says that its bytes stand there as they are, the last one's without padding.
//
//   head       a byte: its lower six bits are r, the upper two say what is coded
//   positions  0: a bit per 64 words (is any of them not 0?), then a byte for each of these 64 (which 8 of them have
//                 one?), then a byte for each of these 8 (which ones are not 0?)
//              1: a bit per word
//              2: none, each word is coded
//   low bits   of u, the words less 1 that are not 0, or in the third case all words: r planes of a bit per word
//   the rest   w = (u >> r) + 1 of each word: a bit that says whether w > 1; of those for which it is, the lowest
//              bit of w; then the same of w >> 1 of these, up to where none is left
//
// Bits begin at the lowest one; each run of bits is filled up to whole bytes. A word of which b bits are left above
// its r low ones takes about r + 1 + 2 b bits, as in an exponential Golomb code (Teuhola, IPL 7(6), 1978), but in
// planes, which vectors read and write side by side.
#pragma once
#include "abi.h"

namespace compcoll {
namespace CC_LEVEL {

constexpr uint64_t delta_version = 1, delta_block_nbytes = 4096, delta_raw = 65535;
// In the first word of the header's two, beside the version.
constexpr uint64_t delta_is_difference = 256;
enum DeltaPositions : uint8_t { DELTA_SPARSE, DELTA_DENSE, DELTA_ALL };

CC_HD uint32_t delta_word_nbytes(uint32_t dtype) {
  if (dtype == INT64 || dtype == UINT64 || dtype == FLOAT64 || dtype == COMPLEX128) return 8;
  return itemsize(dtype) <= 2 ? 2 : 4;
}

}  // namespace CC_LEVEL
}  // namespace compcoll
