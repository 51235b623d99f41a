// ZFP, fixed rate: the stream of the zfp library 1.0, byte for byte (Lindstrom, "Fixed-rate compressed
// floating-point arrays", 2014).
//
// Layout: blocks of 4^d values, x fastest, each exactly `maxbits` bits, back to back, least significant
// bit first, in little-endian 64-bit words; the last word is zero-padded. A block is
//   bit 0        0: all values are zero, the other bits are zero padding
//   8 or 11 bits biased exponent e: |x| < 2^E for all values, E = e - 127 (float64: e - 1023)
//   the rest     bit planes of the transformed block, most significant first, cut off at maxbits
//
// Error bound: call a plane complete if all of its bits are stored. Let K be the lowest complete plane, W the
// word's bits, and u = 2^(E + 2 - W) the unit of the block's integers. Dropping the planes below K from
// negabinary changes a coefficient by at most 2/3 2^K. In the plane that is cut off, one coefficient can
// wrongly get a bit (the decoder knows that a 1 follows, not where); its error is at most 5/6 2^K. The
// inverse transform has the norm 15/4 per dimension, its largest element is 3/2. Forward lifting rounds a
// coefficient by at most 3/2 per dimension (23/16 in one). Inverse lifting rounds a value by at most 5/4,
// plus 15/4 of the error so far. Quantising truncates by less than 1. Conversion of the result, below
// 2^(W-1), to floating point rounds by at most 64 (float64: 512). Altogether
//   |error| <= u ((2/3 (15/4)^d + 1/6 (3/2)^d) 2^K + slack_d)
// as long as that is less than 2^(W-2) u, because then no word wraps around. If one might, the decoded value
// is still a word: |error| <= 2^(W-1) u + 2^E = 3 2^E. 16-bit types add their rounding.
#pragma once
#include "arithmetic.h"
#include "lanes.h"

namespace compcoll {
namespace CC_LEVEL {
namespace zfp {

template <class W>
struct Format;
template <>
struct Format<uint32_t> {
  using Int = int32_t;
  using Real = float;
  static constexpr int bits = 32, mantissa = 23, bias = 127, header = 9;
  static constexpr double conversion = 64;
};
template <>
struct Format<uint64_t> {
  using Int = int64_t;
  using Real = double;
  static constexpr int bits = 64, mantissa = 52, bias = 1023, header = 12;
  static constexpr double conversion = 512;
};

// The signed integer and the floating point type with the shape of a lane type.
template <class L>
struct LaneTypes : Format<L> {};
#if !defined(__CUDACC__)
template <class W, int N>
struct VectorLane {
  using Int = vec<typename Format<W>::Int, N>;
  using Real = vec<typename Format<W>::Real, N>;
};
template <> struct LaneTypes<vec<uint32_t, 4>> : VectorLane<uint32_t, 4> {};
template <> struct LaneTypes<vec<uint32_t, 8>> : VectorLane<uint32_t, 8> {};
template <> struct LaneTypes<vec<uint32_t, 16>> : VectorLane<uint32_t, 16> {};
template <> struct LaneTypes<vec<uint64_t, 2>> : VectorLane<uint64_t, 2> {};
template <> struct LaneTypes<vec<uint64_t, 4>> : VectorLane<uint64_t, 4> {};
template <> struct LaneTypes<vec<uint64_t, 8>> : VectorLane<uint64_t, 8> {};
#endif

template <class To, class From>
CC_HD To bits_as(From v) {
  static_assert(sizeof(To) == sizeof(From), "a bit pattern keeps its size");
  To r;
  __builtin_memcpy(&r, &v, sizeof r);
  return r;
}

template <class To, class From>
CC_HD To convert(From v) {
#if !defined(__CUDACC__)
  if constexpr (sizeof(To) > 8 || sizeof(From) > 8) return __builtin_convertvector(v, To);
  else
#endif
    return To(v);
}

template <class L>
CC_HD L half(L v) {  // arithmetic shift
  using Int = typename LaneTypes<L>::Int;
  return L(Int(v) >> 1);
}

template <class L>
CC_HD void lift_forward(L& x, L& y, L& z, L& w) {
  x = half(x + w), w -= x;
  z = half(z + y), y -= z;
  x = half(x + z), z -= x;
  w = half(w + y), y -= w;
  w += half(y), y -= half(w);
}

template <class L>
CC_HD void lift_inverse(L& x, L& y, L& z, L& w) {
  y += half(w), w -= half(y);
  y += w, w = w + w - y;
  z += x, x = x + x - z;
  y += z, z = z + z - y;
  w += x, x = x + x - w;
}

// One dimension after another, x first; the inverse runs in reverse order.
template <int D, class L>
CC_HD void transform_forward(L* a) {
  constexpr int size = 1 << 2 * D;
  for (int step = 1; step < size; step *= 4)
    for (int line = 0; line < size / 4; line++) {
      L* p = a + line / step * 4 * step + line % step;
      lift_forward(p[0], p[step], p[2 * step], p[3 * step]);
    }
}

template <int D, class L>
CC_HD void transform_inverse(L* a) {
  constexpr int size = 1 << 2 * D;
  for (int step = size / 4; step > 0; step /= 4)
    for (int line = 0; line < size / 4; line++) {
      L* p = a + line / step * 4 * step + line % step;
      lift_inverse(p[0], p[step], p[2 * step], p[3 * step]);
    }
}

// Coefficients by total sequency: order<D>(i) is the position x + 4y + 16z of the i-th one.
template <int D>
CC_HD constexpr int order(int i) {
  constexpr uint8_t order2[] = {0, 1, 4, 5, 2, 8, 6, 9, 3, 12, 10, 7, 13, 11, 14, 15};
  constexpr uint8_t order3[] = {0,  1,  4,  16, 20, 17, 5,  2,  8,  32, 21, 6,  18, 24, 9,  33,
                                36, 3,  12, 48, 22, 25, 37, 40, 34, 10, 7,  19, 28, 13, 49, 52,
                                41, 38, 26, 23, 29, 53, 11, 35, 44, 14, 50, 56, 42, 27, 39, 45,
                                30, 54, 57, 60, 51, 15, 43, 46, 58, 61, 55, 31, 62, 59, 47, 63};
  return D == 1 ? i : D == 2 ? order2[i & 15] : order3[i & 63];
}

// The inverse: index of the coefficient at a position.
template <int D>
struct Places {
  uint8_t at[1 << 2 * D] = {};
  CC_HD constexpr Places() {
    for (int i = 0; i < 1 << 2 * D; i++) at[order<D>(i)] = i;
  }
};

// Swaps bit i of `low` with bit i - S of `high`, for each i that has the bit S.
template <int S, class L>
struct Exchange {
  CC_HD static void run(L& low, L& high) {
    using W = typename lanes<L>::word;
    constexpr W mask = W(~W(0)) / ((W(1) << S) + 1);  // S ones, S zeros, from bit 0 up
    L l = low, h = high;
    low = (l & mask) | ((h & mask) << S);
    high = ((l >> S) & mask) | (h & ~mask);
  }
};

// Exchanges at distances S to 2 S / N among N words, `step` apart.
template <int N, int S, class L>
CC_HD void exchange_among(L* a, int step) {
  L r[N];
  for (int i = 0; i < N; i++) r[i] = a[i * step];
  for (int i = 0; i < N / 2; i++) Exchange<S, L>::run(r[i], r[i + N / 2]);
  for (int i = 0; i < N; i++)
    if (!(i & N / 4)) Exchange<S / 2, L>::run(r[i], r[i + N / 4]);
  if constexpr (N == 8)
    for (int i = 0; i < N; i += 2) Exchange<S / 4, L>::run(r[i], r[i + 1]);
  for (int i = 0; i < N; i++) a[i * step] = r[i];
}

// Swaps bit i of word j with bit j of word i, in each N x N square of bits of N words. Passes over memory at
// most twice, because 8 words at a time fit into registers.
template <int N, class L>
CC_HD void bit_transpose(L* a) {
  constexpr int first = N == 4 || N == 16 ? 4 : 8, second = N / first;
  for (int i = 0; i < second; i++) exchange_among<first, N / 2>(a + i, second);
  if constexpr (second > 1)
    for (int i = 0; i < first; i++) exchange_among<second, second / 2>(a + i * second, 1);
}

// Planes of a transposed block: bit i of plane k is bit k of coefficient i.
template <int D, class L>
CC_HD void to_planes(L* a) {
  constexpr int size = 1 << 2 * D, bits = 8 * sizeof(typename lanes<L>::word);
  constexpr int side = size < bits ? size : bits;
  for (int i = 0; i < size; i += side) bit_transpose<side>(a + i);
}

template <class L>
CC_HD L negabinary(L v) {
  using W = typename lanes<L>::word;
  constexpr W mask = W(~W(0)) / 3 * 2;
  return (v + mask) ^ mask;
}

template <class L>
CC_HD L from_negabinary(L v) {
  using W = typename lanes<L>::word;
  constexpr W mask = W(~W(0)) / 3 * 2;
  return (v ^ mask) - mask;
}

// e of a block, from the bit pattern of its largest magnitude, which is not zero.
template <class L>
CC_HD L exponent(L magnitude) {
  return (magnitude >> Format<typename lanes<L>::word>::mantissa) + 1;
}

// The bit pattern of 2^(W - 2 - E); valid for e >= W - 2.
template <class L>
CC_HD L quantise_scale(L e) {
  using F = Format<typename lanes<L>::word>;
  return (2 * F::bias + F::bits - 2 - e) << F::mantissa;
}

// The bit pattern of 2^(E + 2 - W), which is subnormal or zero for small e.
template <class L>
CC_HD L dequantise_scale(L e) {
  using W = typename lanes<L>::word;
  using F = Format<W>;
  constexpr W low = F::bits - 2;
  L normal = (e - low) << F::mantissa;
  L tiny = L{} + W(1);
  L shift = e + (F::mantissa - 1 - low);  // wraps below zero if the scale underflows
  L subnormal = shift < W(F::mantissa) ? tiny << (shift & W(F::bits - 1)) : L{};
  return e > low ? normal : subnormal;
}

template <class L>
CC_HD L quantise(L value, L scale) {
  using Real = typename LaneTypes<L>::Real;
  return L(convert<typename LaneTypes<L>::Int>(multiply(bits_as<Real>(value), bits_as<Real>(scale))));
}

template <class L>
CC_HD L dequantise(L q, L scale) {
  using Real = typename LaneTypes<L>::Real;
  return bits_as<L>(multiply(convert<Real>(typename LaneTypes<L>::Int(q)), bits_as<Real>(scale)));
}

// Terms of the error bound, for D dimensions and words W.
template <int D, class W>
struct Bound {
  static constexpr double norm = D == 1 ? 3.75 : D == 2 ? 14.0625 : 52.734375;
  static constexpr double largest = D == 1 ? 1.5 : D == 2 ? 2.25 : 3.375;
  static constexpr double inverse = D == 1 ? 1.25 : D == 2 ? 5.9375 : 23.515625;
  static constexpr double truncation = norm * 2 / 3 + largest / 6;
  static constexpr double slack = norm * 1.5 * D + inverse + 1 + Format<W>::conversion;
  // limit: highest K with truncation 2^K + slack < 2^(W-2); wrapped: a K whose bound is more than 3 2^E.
  static constexpr int limit = Format<W>::bits - 2 - 2 * D;
  static constexpr int wrapped = limit + 3;
};

}  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
