// szp: error-bounded quantisation. Every value comes back within an absolute bound, always.
//
// Payload, n real numbers (complex ones are pairs) in blocks of 32:
//   ceil(n / 32) bytes, the width of each block, then zero bytes up to a multiple of 4;
//   the blocks back to back, so that an exclusive prefix sum of their sizes gives the offsets.
// A block of width w <= 32 is w little-endian 32-bit words: word k holds bit k of its 32 codes, the
// first value's in bit 0. So a warp forms a word with one ballot, and a block of equal values
// around 0 costs its width byte alone. Width 255 means the block's own bytes, unchanged.
//
//   q = nearest even integer to x * (1 / step), step = 2 * bound, all in float64
//   code[i] = zigzag(q[i] - q[i - 1]), q[-1] = 0, mod 2^32; behind the last value q repeats
//   x' = q * step in float64, rounded to the type (16-bit ones by way of float32)
//
// Error: the encoder forms x' as the decoder does, and a block in which |x - x'| <= bound does not hold
// for each value, exactly, is stored unchanged: values too large for q, those that rounding would carry
// past the bound, and non-finite ones, whose bits survive. |x - x'| is exact in the type itself: x and
// x' are within a factor of two of each other wherever it is not far above the bound.
//
// Sum of two payloads with one step: the integers are added, which is exact, so P summands of bound b
// are off by at most P * b * (1 + 2^-20), plus one rounding of the result to its type. Where q leaves 32
// bits or one of both blocks is stored unchanged, both are decoded, added in the type (16-bit ones in
// float32) and stored unchanged: one more rounding. A sum can overflow as it does in the type.
//
// Header words: float64 bits of the bound; float64 bits of the relative bound it was made from, or 0.
#pragma once
#include "abi.h"

namespace compcoll {
namespace CC_LEVEL {

constexpr uint32_t szp_block = 32, szp_raw = 255;
constexpr double szp_bound_min = 0x1p-1022, szp_bound_max = 0x1p+1020;  // the step and its inverse are normal
constexpr double szp_magic = 0x1.8p+52;  // adding it rounds to an integer, into the low word

CC_HD uint64_t szp_blocks(uint64_t n) { return n / szp_block + (n % szp_block != 0); }
CC_HD uint64_t szp_widths_nbytes(uint64_t blocks) { return (blocks + 3) & ~uint64_t(3); }

// Bytes of a block, or -1 for a width that there is not.
CC_HD int szp_nbytes(uint32_t width, int raw_nbytes) {
  return width <= 32 ? int(4 * width) : width == szp_raw ? raw_nbytes : -1;
}

// The bits of the rounded quotient; the low word is q if |q| < 2^31, and else some other number, which
// the encoder's check refuses.
template <class D, class U>
CC_HD U szp_quantise(D x, double inverse) {
  D r = x * inverse + szp_magic;
  U u;
  __builtin_memcpy(&u, &r, sizeof u);
  return u;
}

template <class L>
CC_HD L szp_zigzag(L d) { return (d << 1) ^ (L{} - (d >> 31)); }
template <class L>
CC_HD L szp_unzigzag(L z) { return (z >> 1) ^ (L{} - (z & 1)); }

// Each 64-bit lane as a matrix of 8 x 8 bits, transposed.
template <class L>
CC_HD L szp_transpose(L x) {
  L t = (x ^ (x >> 7)) & 0x00aa00aa00aa00aaull;
  x ^= t ^ (t << 7);
  t = (x ^ (x >> 14)) & 0x0000cccc0000ccccull;
  x ^= t ^ (t << 14);
  t = (x ^ (x >> 28)) & 0x00000000f0f0f0f0ull;
  return x ^ t ^ (t << 28);
}

}  // namespace CC_LEVEL
}  // namespace compcoll
