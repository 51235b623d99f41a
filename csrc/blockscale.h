// int8, int4, fp8: block-scaled codes. A block of 32 to 256 values has one scale, its largest magnitude.
//
// Payload: n real numbers (complex ones are pairs) in blocks of B:
//   ceil(n / B) scales, float64 for float64 and float32 for all other types, then
//   the codes: n bytes (int8, fp8), or ceil(n / 2) (int4: the even value in the low four bits).
// Scales are apart from codes, so that adjacent threads read and write adjacent memory. The size depends only
// on n.
//
// A scale is the largest magnitude s itself, not a code's step s / limit: it is exact for every s, while a
// step could be subnormal or 0, and a block's largest value is decoded exactly.
//   v = x * (limit / s), limit = 127 (int8), 7 (int4), 448 (fp8); in float64, and rounded to float32 for fp8
//   code = v rounded to an integer in two's complement, or to an e4m3 number (sign, 4 bits of exponent
//          with bias 7, 3 bits of mantissa; no infinities, 0x7f is never written)
//   x' = code * (s / limit) in float64, rounded to the type (16-bit ones by way of float32)
// For float64 with s < 2^-500, x and s are first multiplied by 2^600, and x' at the end by 2^-600; and x' is
// clamped to s, which rounding could exceed. Blocks of zeros have s = 0 and x' = 0. Everything that an
// encoder has written decodes to finite values.
//
// Rounding is to nearest even, or stochastic: up with a probability equal to the fraction cut off, decided by
// a hash of seed, scale, block number and position, so that the mean is right and equal inputs give equal
// bytes on each machine. Integers: v + (hash + 1/2) * 2^-32, with a signed hash, to the nearest.
//
// Error: at most s / 254, s / 14, s / 28 (half of the widest gap between codes), or twice that with
// stochastic rounding, plus one rounding to the type; for fp8 also at most x / 16, or x / 8, or s / 458752
// (2^-10 of 448) below s / 28672, where e4m3 is subnormal.
//
// Header words: B + 2^32 if rounding is stochastic; the seed.
#pragma once
#include "abi.h"
#include "bits.h"

namespace compcoll {
namespace CC_LEVEL {

constexpr uint32_t blockscale_max = 256;
constexpr uint32_t blockscale_golden = 0x9e3779b9u;

CC_HD bool blockscale_valid(uint64_t block) {
  return block >= 32 && block <= blockscale_max && (block & (block - 1)) == 0;
}

// Murmur3's finaliser: every bit of the result depends on every bit of h.
template <class L>
CC_HD L blockscale_mix(L h) {
  h ^= h >> 16;
  h *= 0x85ebca6bu;
  h ^= h >> 13;
  h *= 0xc2b2ae35u;
  return h ^ (h >> 16);
}

// The hash of value j of a block is blockscale_mix(key + j * golden). The key includes the scale, so that
// chunks and ranks with one seed do not round alike.
CC_HD uint32_t blockscale_key(uint64_t seed, uint64_t scale_bits, uint64_t block) {
  uint32_t key = blockscale_mix(uint32_t(seed) ^ blockscale_mix(uint32_t(seed >> 32) + blockscale_golden));
  key = blockscale_mix(key ^ uint32_t(scale_bits)) + uint32_t(scale_bits >> 32);
  return blockscale_mix(key + uint32_t(block) * blockscale_golden);
}

// e4m3 codes of floats up to slightly more than 448. The last place of 24576 is 2^-9, e4m3's smallest number.
template <class L, class F>
CC_HD L e4m3_nearest(F v) {
  L u = bit_cast<L>(v), sign = u >> 24 & 0x80;
  u &= 0x7fffffffu;
  L small = bit_cast<L>(bit_cast<F>(u) + 24576.0f) - 0x46c00000u;
  L normal = ((u + 0x7ffffu + (u >> 20 & 1)) >> 20) - (120u << 3);
  L code = u < 0x3c800000u ? small : normal;
  return (code < 0x7eu ? code : code * 0 + 0x7e) | sign;
}

// Adds 20 random bits to the 20 bits that are cut off; the sum may carry into the code.
template <class L, class F>
CC_HD L e4m3_stochastic(F v, L hash) {
  L u = bit_cast<L>(v), sign = u >> 24 & 0x80, random = hash >> 12;
  u &= 0x7fffffffu;
  // Below 2^-6 the unit is 2^-29; adding 2^-6 brings it to the last place.
  L fixed = bit_cast<L>(bit_cast<F>(u) + 0.015625f) - 0x3c800000u;
  L code = ((u < 0x3c800000u ? fixed : u - (120u << 23)) + random) >> 20;
  return (code < 0x7eu ? code : code * 0 + 0x7e) | sign;
}

template <class F, class L>
CC_HD F e4m3_value(L code) {
  L e = code & 0x7f;
  L small = bit_cast<L>(bit_cast<F>(e + 0x46c00000u) - 24576.0f);
  L normal = (e << 20) + (120u << 23);
  return bit_cast<F>((e < 8u ? small : normal) | (code & 0x80) << 24);
}

}  // namespace CC_LEVEL
}  // namespace compcoll
