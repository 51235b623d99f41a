// bfp: block floating point with N bits per value. A block of 64 values has one step, and codes either its
// values or their differences, whichever have the smaller step.
//
// Arithmetic uses F: float64 for float64, float32 for all other types. Words W have the size of F.
//
// Payload: n real numbers (complex ones are pairs) in tiles of 32 lanes x bits(W) rows: 1024 values, 2048 of
// float64. The last tile is padded to whole blocks by repeating its last `dim` values (0 if it has fewer).
//   Codes, tile by tile: N rows of 32 words W. Lane i has the values i, 32 + i, 64 + i, ... of the tile;
//     their codes of N bits (two's complement) are consecutive in word i of each row, lowest bit first. A
//     last tile of b blocks has ceil(2 b N / bits(W)) rows.
//   Scales, 16 bits for each block, zero-padded to words W:
//     (bits of the step >> 16) << 1 | d              float32: 8 bits of exponent, 7 of mantissa
//     ((bits >> 47) - (512 << 5)) << 1 | d           float64: 10 bits of exponent, 5 of mantissa
//     d: 1 if the block codes differences
//   Bases: the first `dim` values of each tile, as F.
// The size depends only on n and the parameters, and each tile can be decoded by itself.
//
// In a block with largest magnitude m and step s, q[i] = x[i] * (1 / s) rounded to an integer, and x'[i] =
// q[i] * s, rounded to the type. The codes are q, or q[i] - q[i - dim]. For the block's first `dim` values,
// q[i - dim] is p * (1 / s) rounded to nearest, where p are the decoded values of the block before, or the
// bases.
//   s of values: m / (2^(N-1) - 1)
//   s of differences: e / (2^(N-1) - 2), but at least m * 2^-22 (2^-50); e is the largest
//     |x[i] - x[i - dim]|, with p for values before the block. For N = 2 the divisor is 1/2. With stochastic
//     rounding the divisor has 3 instead of 2, and N = 2 has no differences.
// Both are rounded up to a step that has a scale and is at least 2^-126 (2^-511). Because x is quantised
// before differences are taken, each value has the error of one rounding, and only p is carried from block to
// block (dual quantisation: Tian et al., cuSZ, PACT 2020).
//
// An array is refused if it has magnitudes from 2^125 (2^509) on, or if it is not all zeros and no value
// needs at least the smallest step.
//
// Rounding is to nearest even, or stochastic: up with a probability equal to the fraction cut off, decided by
// a hash of seed, scale, block number and position.
//
// Error: s / 2, or s with stochastic rounding; plus 3 roundings to F of the value (that of 1 / s, of its
// product with x, and of q * s). For 16-bit types, also one rounding to the type, which at most doubles the
// error.
//
// Header words: N | dim << 8 | stochastic << 32; the seed.
#pragma once
#include "abi.h"
#include "arithmetic.h"
#include "bits.h"
#include "blockscale.h"

namespace compcoll {
namespace CC_LEVEL {
namespace bfp {

constexpr uint32_t row = 32, block = 64, max_dim = 32;

template <class F> struct Form;
template <>
struct Form<float> {
  using Word = uint32_t;
  using Signed = int32_t;
  static constexpr uint32_t bits = 32, max_bits = 24, shift = 16, bias = 0;
  static constexpr Word infinity = 0x7f800000, lowest = 1u << 23, highest = (127u + 126) << 23,
                        refused = (127u + 125) << 23;
  static constexpr float least = 0x1p-22f, range = 0x1p30f;  // above any q
  static constexpr double unit = 0x1p-24;
};
template <>
struct Form<double> {
  using Word = uint64_t;
  using Signed = int64_t;
  static constexpr uint32_t bits = 64, max_bits = 52, shift = 47, bias = 512 << 5;
  static constexpr Word infinity = 0x7ffull << 52, lowest = 512ull << 52, highest = (1023ull + 510) << 52,
                        refused = (1023ull + 509) << 52;
  static constexpr double least = 0x1p-50, range = 0x1p51 - 1;
  static constexpr double unit = 0x1p-53;
};

template <class F> constexpr uint32_t tile = row * Form<F>::bits;
template <class F> constexpr uint32_t tile_blocks = tile<F> / block;

template <class F>
struct Rules {
  using Word = typename Form<F>::Word;
  uint32_t bits, dim;
  bool stochastic, valid;
  F per_value, per_difference;
  Word margin;  // keeps the largest code in range despite the rounding of the step itself
  Word least;  // bits of the largest magnitude that the smallest step can code
  Word never;  // all ones but the sign if there are no differences, else 0

  CC_HD explicit Rules(const uint64_t* params) {
    bits = params[0] & 255, dim = params[0] >> 8 & 255, stochastic = params[0] >> 32 & 1;
    valid = bits >= 2 && bits <= Form<F>::max_bits && dim >= 1 && dim <= max_dim && params[0] >> 33 == 0 &&
            (params[0] >> 16 & 0xffff) == 0;
    const uint64_t half = valid ? uint64_t(1) << (bits - 1) : 4;
    per_value = F(1) / F(half - 1);
    least = bit_cast<Word>(bit_cast<F>(Form<F>::lowest) * F(half - 1));
    per_difference = F(1) / (half == 2 ? F(0.5) : F(half - (stochastic ? 3 : 2)));
    margin = stochastic || bits > Form<F>::max_bits - 4 ? 8 : 0;
    never = stochastic && half == 2 ? Word(-1) >> 1 : 0;
  }
};

template <class F>
struct Layout {
  uint64_t tiles, blocks, codes_nbytes, scales_nbytes, nbytes;

  CC_HD Layout(uint64_t n, const Rules<F>& rules) {
    const uint64_t whole = n / tile<F>;
    blocks = n / block + (n % block != 0);
    tiles = whole + (n % tile<F> != 0);
    codes_nbytes = (whole * rules.bits + rows(blocks % tile_blocks<F>, rules)) * row * sizeof(F);
    if (n % tile<F> && blocks % tile_blocks<F> == 0) codes_nbytes += uint64_t(rules.bits) * row * sizeof(F);
    scales_nbytes = (2 * blocks + sizeof(F) - 1) / sizeof(F) * sizeof(F);
    nbytes = codes_nbytes + scales_nbytes + tiles * rules.dim * sizeof(F);
  }
  // Rows of words for the codes of `blocks` blocks.
  static CC_HD uint64_t rows(uint64_t blocks, const Rules<F>& rules) {
    return (2 * blocks * rules.bits + Form<F>::bits - 1) / Form<F>::bits;
  }
};

// Code and step of a block. V is F or a vector of it, U the words of its bits.
template <class V, class U>
struct Scale {
  U code;
  V step, inverse;
};

template <class F, class U>
CC_HD U round_up(const Rules<F>& rules, U step) {
  constexpr auto low = (typename Form<F>::Word(1) << Form<F>::shift) - 1;
  step = (step + (rules.margin + low)) & ~low;
  return step > Form<F>::lowest ? step : U{} + Form<F>::lowest;
}

// Chooses the scale from the bits of the largest magnitude and the largest difference.
template <class F, class V, class U>
CC_HD Scale<V, U> choose(const Rules<F>& rules, U most, U change) {
  const V m = bit_cast<V>(most);
  const U value = round_up(rules, bit_cast<U>(multiply(m, V{} + rules.per_value)));
  const U least = bit_cast<U>(multiply(m, V{} + Form<F>::least));
  U difference = bit_cast<U>(multiply(bit_cast<V>(change), V{} + rules.per_difference));
  difference = round_up(rules, difference > least ? difference : least) | rules.never;
  const U step = difference < value ? difference : value;
  const U flag = difference < value ? U{} + 1 : U{};
  Scale<V, U> scale;
  scale.code = ((step >> Form<F>::shift) - Form<F>::bias) << 1 | flag;
  scale.step = bit_cast<V>(step);
  scale.inverse = reciprocal(scale.step);
  return scale;
}

// Status for refusing an array, from the bits of its largest magnitude; 0 if it is accepted. If no value
// needed the smallest step, all values would have fewer bits than promised.
template <class F>
CC_HD int64_t refusal(const Rules<F>& rules, typename Form<F>::Word most) {
  if (most >= Form<F>::infinity) return NONFINITE;
  if (most >= Form<F>::refused) return UNREPRESENTABLE;
  return most > 0 && most < rules.least ? UNREPRESENTABLE : 0;
}

// True if an encoder can have written this scale.
template <class F>
CC_HD bool sound(uint32_t code) {
  const auto step = (typename Form<F>::Word(code >> 1) + Form<F>::bias) << Form<F>::shift;
  return step >= Form<F>::lowest && step <= Form<F>::highest;
}
template <class F>
CC_HD F step_of(uint32_t code) {
  return bit_cast<F>((typename Form<F>::Word(code >> 1) + Form<F>::bias) << Form<F>::shift);
}

// Rounds to nearest even, for magnitudes below 2^51. The low bits of the sum are the integer.
template <class V, class U>
CC_HD U nearest_by_sum(V v) {
  constexpr uint64_t magic = 0x4338ull << 48;  // 1.5 * 2^52
  return bit_cast<U>(v + 0x1.8p52) - magic;
}
// For any q; only its lowest 52 bits count.
template <class V, class U>
CC_HD V value_by_sum(U q) {
  constexpr uint64_t mantissa = (1ull << 52) - 1, magic = 0x433ull << 52;
  return bit_cast<V>(((q + (1ull << 51)) & mantissa) | magic) - 0x1.8p52;
}

// Stochastic rounding of y: `whole` is the integer below, `random` a hash of 23 bits (float64: 32 bits).
template <class F, class V>
CC_HD V round_by(V y, V whole, V random) {
  constexpr F all = sizeof(F) == 4 ? F(0x1p23) : F(0x1p32);
  return whole + (random + F(0.5) < (y - whole) * all ? V{} + F(1) : V{});
}
// Like the above, for value j of a block.
template <class F>
CC_HD F round_by_hash(F y, uint32_t key, uint32_t j) {
  const uint32_t hash = blockscale_mix(key + j * blockscale_golden);
#ifdef __CUDACC_RTC__
  const F whole = floor(y);
#else
  const F whole = __builtin_floor(y);
#endif
  return round_by<F, F>(y, whole, F(sizeof(F) == 4 ? hash >> 9 : hash));
}

// Initial q for differences, from the value before a block; arbitrary for invalid payloads.
template <class F>
CC_HD F before_block(F p, F inverse) {
  return clamp(multiply(p, inverse), Form<F>::range);
}

// The largest error of any value, from the largest step (0 if all values are 0) and magnitude; `rounding` and
// `tiny` are those of the type, if it is not F. A value of that type is at most twice as far from the rounded
// x' as from x'.
template <class F>
CC_HD double bound(const Rules<F>& rules, double step, double most, double rounding, double tiny) {
  if (most == 0) return 0;
  double error = step * (rules.stochastic ? 1 : 0.5) * (1 + 0x1p-20);
  error += (3 * most + error) * Form<F>::unit * (1 + 0x1p-20);
  const double narrow = (most + error) * rounding * (1 + 0x1p-6) + 4 * tiny;
  return error + (narrow < error ? narrow : error);
}

}  // namespace bfp
}  // namespace CC_LEVEL
}  // namespace compcoll
