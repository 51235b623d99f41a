// szp: error-bounded quantisation. Every value comes back within an absolute bound, always.
//
// Payload, n real numbers (complex ones are pairs) in blocks of 32:
//   ceil(n / 32) bytes, the width of each block, then zero bytes up to a multiple of 4;
//   the blocks back to back, so that an exclusive prefix sum of their sizes gives the offsets.
// A block is w little-endian 32-bit words: word k holds bit k of its 32 codes, the first value's in
// bit 0. So a warp forms a word with one ballot, and a block of zeros costs its width byte alone.
//   width         the codes are
//   w             the differences, for w in 0 to 32
//   64 + w        the differences, the first one in a word of its own in front of the w others, in
//                 which it counts as 0: shorter where data are smooth and far from 0
//   128 + w       the integers: shorter where neighbours do not resemble each other
//   255           none; the block's own bytes, unchanged
// The encoder takes the shortest, and of equally short ones the first.
//
//   q = nearest even integer to x * (1 / step), all in float64
//   integers     zigzag(q[i]);  differences  zigzag(q[i] - q[i - 1]) mod 2^32, q[-1] = 0
//   x' = q * step in float64, rounded to the type (16-bit ones by way of float32)
// Behind the last value, its q repeats. Widening and rounding keep subnormal numbers, which a GPU told to
// flush them does not do by itself.
//
// Error: step = 2 * bound * (1 - 2^-7), a little less than it could be, so that rounding x' to its type
// does not carry values past the bound, for float32 as long as |q| <= 65000. The encoder forms x' as the
// decoder does, and a block in which |x - x'| <= bound does not hold for each value, exactly, is stored
// unchanged: values too large for q, those that rounding harms all the same, and non-finite ones, whose
// bits survive. |x - x'| is exact in the type itself wherever it is close to the bound, because x and x'
// are then within a factor of two of each other, or x' is 0.
//
// Sum of two payloads with one step: the integers are added, which is exact, so P summands of bound b
// are off by at most P * b, plus one rounding of the result to its type. Where q leaves 32 bits, one of
// both blocks is stored unchanged, or nothing would be gained, both are decoded, added in the type
// (16-bit ones in float32) and stored unchanged: one more rounding. A sum can overflow as it does in the
// type. args->bound is what the addition itself adds to the bounds of its two terms; infinite where a sum may
// have overflowed.
//
// Header words: float64 bits of the step; those of the relative bound asked for, or 0. The encoder is
// given those of the absolute bound, or 0, in place of the step. Bounds here are of real numbers.
#pragma once
#include "abi.h"
#include "bits.h"

namespace compcoll {
namespace CC_LEVEL {

constexpr uint32_t szp_block = 32, szp_apart = 64, szp_plain = 128, szp_raw = 255;
constexpr double szp_bound_min = 0x1p-1022, szp_bound_max = 0x1p+1020;  // step and 1 / step are normal
constexpr double szp_steps = 2 - 0x1p-6;  // the step for a bound of 1
// Largest |x| / step for which x' is sure to keep the bound: |x - x'| is at most step * (1 / 2 + 2^-21),
// which the rounding of x * (1 / step) leaves, and the rounding of x', |x| * 2^-24 for float32. The sum
// has to stay below step / (2 - 2^-6) = step * 0.50393. What is larger is checked; the bytes are the same.
constexpr double szp_sure_float32 = 65000, szp_sure_float64 = 0x1p+30;
constexpr double szp_magic = 0x1.8p+52;  // adding it rounds to an integer, into the low word
constexpr uint32_t szp_magic_high = 0x43380000;  // the other word then, less 1 where the integer is negative

CC_HD uint64_t szp_blocks(uint64_t n) { return n / szp_block + (n % szp_block != 0); }
CC_HD uint64_t szp_widths_nbytes(uint64_t blocks) { return (blocks + 3) & ~uint64_t(3); }

// Bytes of a block, or -1 for a width that there is not.
CC_HD int szp_nbytes(uint32_t width, int raw_nbytes) {
  if (width == szp_raw) return raw_nbytes;
  uint32_t planes = width % szp_apart;
  return width < szp_plain + szp_apart && planes <= 32 ? int(4 * (planes + (width / szp_apart == 1))) : -1;
}

CC_HD uint32_t szp_bit_length(uint32_t u) {
#if defined(__CUDACC_RTC__)  // of which __clz makes three instructions
  uint32_t highest;
  asm("bfind.u32 %0, %1;" : "=r"(highest) : "r"(u));
  return highest + 1;
#elif defined(__CUDACC__)
  return 32 - __clz(u);
#else
  return 63 - __builtin_clzll(2ull * u + 1);
#endif
}

// The shortest width of a block from its first difference, the "or" of the others, and that of the integers;
// above it, in bits 8 and up, the words that it takes, so that a minimum picks it without branches.
CC_HD uint32_t szp_shortest(uint32_t first, uint32_t others, uint32_t plain) {
  constexpr uint32_t both = 0x101;  // a length in either place
  const uint32_t all = szp_bit_length(first | others) * both;
  const uint32_t apart = szp_bit_length(others) * both + (0x100 + szp_apart);
  const uint32_t integers = szp_bit_length(plain) * both + szp_plain;
  const uint32_t best = apart < all ? apart : all;
  return integers < best ? integers : best;
}

CC_HD uint32_t szp_width(uint32_t first, uint32_t others, uint32_t plain, int raw_nbytes) {
  const uint32_t best = szp_shortest(first, others, plain);
  return int(best >> 8 << 2) < raw_nbytes ? best & 255 : szp_raw;
}

// The bits of the rounded quotient; the low word is q if |q| < 2^31, and else some other number, which
// the encoder's check refuses.
template <class D, class U>
CC_HD U szp_quantise(D x, double inverse) {
  return bit_cast<U>(x * inverse + szp_magic);
}

// S is L with a sign.
template <class S, class L>
CC_HD L szp_zigzag(L d) {
  return (d << 1) ^ (L)((S)d >> 31);
}
template <class L>
CC_HD L szp_unzigzag(L z) {
  return (z >> 1) ^ (L{} - (z & 1));
}

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
