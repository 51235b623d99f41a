// szp: error-bounded quantisation. The error of every value is within an absolute bound, always.
//
// Payload: n real numbers (complex ones are pairs) in blocks of 32:
//   ceil(n / 32) bytes, the width of each block, then zero bytes up to a multiple of 4;
//   the blocks back to back, so that an exclusive prefix sum of their sizes gives the offsets.
// A block is w little-endian 32-bit words: word k holds bit k of its 32 codes, the first value's in bit 0. So
// a warp forms a word with one ballot, and a block of zeros takes only its width byte.
//   width         the codes are
//   w             the differences, for w in 0 to 32
//   64 + w        the differences, the first one in a separate word in front of the w others, in which
//                 it counts as 0: shorter if data are smooth and far from 0
//   128 + w       the integers: shorter if neighbours are dissimilar
//   255           none; the block's bytes, unchanged
// The encoder takes the shortest form, and among equally short ones the first.
//
//   q = nearest even integer to x * (1 / step), all in float64
//   integers     zigzag(q[i]);  differences  zigzag(q[i] - q[i - 1]) mod 2^32, q[-1] = 0
//   x' = q * step in float64, rounded to the type (16-bit ones by way of float32)
// After the last value, its q repeats. Widening and rounding keep subnormal numbers; a GPU that is set to
// flush them needs extra code for this.
//
// Error: step = 2 * bound * (1 - 2^-7), slightly less than possible, so that rounding x' to its type does not
// carry values past the bound, for float32 as long as |q| <= 65000. The encoder computes x' like the decoder,
// and stores a block unchanged unless |x - x'| <= bound holds for each value, exactly. This covers values too
// large for q, values that rounding carries past the bound all the same, and non-finite values, whose bits
// are kept. |x - x'| is exact in the type itself wherever it is close to the bound, because x and x' are then
// within a factor of two of each other, or x' is 0.
//
// Sum of two payloads with one step: the integers are added, which is exact, so the error of P summands of
// bound b is at most P * b, plus one rounding of the result to its type. If q needs more than 32 bits, one of
// the two blocks is stored unchanged, or nothing would be gained, then both are decoded, added in the type
// (16-bit ones in float32) and stored unchanged: one more rounding. A sum can overflow as in the type itself.
// args->bound is the addition's own error, beside the bounds of its two terms; infinite if a sum may have
// overflowed.
//
// Header words: float64 bits of the step; those of the requested relative bound, or 0. The encoder receives
// the absolute bound's bits, or 0, in place of the step. Bounds here apply to real numbers.
#pragma once
#include "abi.h"
#include "bits.h"

namespace compcoll {
namespace CC_LEVEL {

constexpr uint32_t szp_block = 32, szp_apart = 64, szp_plain = 128, szp_raw = 255;
constexpr double szp_bound_min = 0x1p-1022, szp_bound_max = 0x1p+1020;  // step and 1 / step are normal
constexpr double szp_steps = 2 - 0x1p-6;  // the step for a bound of 1
// Largest |x| / step for which x' surely keeps the bound: |x - x'| is at most step * (1 / 2 + 2^-21), left by
// the rounding of x * (1 / step), plus the rounding of x', |x| * 2^-24 for float32. The sum has to stay below
// step / (2 - 2^-6) = step * 0.50393. Larger values are checked; the bytes are the same.
constexpr double szp_sure_float32 = 65000, szp_sure_float64 = 0x1p+30;
constexpr double szp_magic = 0x1.8p+52;  // adding it rounds to an integer, into the low word
constexpr uint32_t szp_magic_high = 0x43380000;  // the high word then; 1 less if the integer is negative

CC_HD uint64_t szp_blocks(uint64_t n) { return n / szp_block + (n % szp_block != 0); }
CC_HD uint64_t szp_widths_nbytes(uint64_t blocks) { return (blocks + 3) & ~uint64_t(3); }

// Size of a block, or -1 for an invalid width.
CC_HD int szp_nbytes(uint32_t width, int raw_nbytes) {
  if (width == szp_raw) return raw_nbytes;
  uint32_t planes = width % szp_apart;
  return width < szp_plain + szp_apart && planes <= 32 ? int(4 * (planes + (width / szp_apart == 1))) : -1;
}

CC_HD uint32_t szp_bit_length(uint32_t u) {
#if defined(__CUDACC_RTC__)  // __clz would compile to three instructions
  uint32_t highest;
  asm("bfind.u32 %0, %1;" : "=r"(highest) : "r"(u));
  return highest + 1;
#elif defined(__CUDACC__)
  return 32 - __clz(u);
#else
  return 63 - __builtin_clzll(2ull * u + 1);
#endif
}

// The shortest width of a block, from its first difference, the "or" of the others, and the "or" of the
// integers. Bits 8 and up are the number of words, so that a minimum selects it without branches.
CC_HD uint32_t szp_shortest(uint32_t first, uint32_t others, uint32_t plain) {
  constexpr uint32_t both = 0x101;  // a length in both places
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

// The bits of the rounded quotient. The low word is q if |q| < 2^31, and otherwise another number, which the
// encoder's check rejects.
template <class D, class U>
CC_HD U szp_quantise(D x, double inverse) {
  return bit_cast<U>(x * inverse + szp_magic);
}

// Type S is the signed form of L.
template <class S, class L>
CC_HD L szp_zigzag(L d) {
  return (d << 1) ^ (L)((S)d >> 31);
}
template <class L>
CC_HD L szp_unzigzag(L z) {
  return (z >> 1) ^ (L{} - (z & 1));
}

// Transposes each 64-bit lane as a matrix of 8 x 8 bits.
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
