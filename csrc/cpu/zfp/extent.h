// Guarantees of ZFP for an array: whether it can be coded, and the error bound.
#pragma once
#include "elements.h"

namespace compcoll {
namespace CC_LEVEL {
namespace zfp {

// The guarantees depend on the data only through these three values.
template <class L>
struct Extent {
  L largest = {};   // largest magnitude, as a bit pattern
  L smallest = {};  // smallest nonzero largest magnitude of a block, minus 1, complemented
  L key = {};       // e + K of the block with the largest error

  void add_magnitude(L magnitude) {
    largest = magnitude > largest ? magnitude : largest;
    L complement = ~(magnitude - 1);
    smallest = complement > smallest ? complement : smallest;
  }

  // For blocks with exponent e and lowest complete plane k.
  template <int D>
  void add_error(L e, L k, L magnitude) {
    using B = Bound<D, typename lanes<L>::word>;
    L sum = e + (k > B::limit ? L{} + B::wrapped : k);
    sum = magnitude != 0 ? sum : L{};
    key = sum > key ? sum : key;
  }
};

// Returns a status, or 0 and the error bound.
template <class E, int D, class L>
int64_t judge(const Extent<L>& extent, double* bound) {
  using W = typename E::Word;
  using F = Format<W>;
  W largest = 0, smallest = 0, key = 0;
  for (int i = 0; i < lanes<L>::n; i++) {
    largest = lane(extent.largest, i) > largest ? lane(extent.largest, i) : largest;
    smallest = lane(extent.smallest, i) > smallest ? lane(extent.smallest, i) : smallest;
    key = lane(extent.key, i) > key ? lane(extent.key, i) : key;
  }
  constexpr W infinity = W(2 * F::bias + 1) << F::mantissa;
  if (largest >= infinity) return NONFINITE;
  *bound = 0;
  if (!largest) return 0;
  int e = exponent(largest), e_min = exponent(W(~smallest + 1));
  // Below this range, the scale overflows. Above it, a decoded value or the bound could, if a block wraps
  // around.
  if (e_min < F::bits - 2 || e >= 2 * F::bias - 1) return UNREPRESENTABLE;
  using B = Bound<D, W>;
  // Rounding errors of this computation are far below one part in 2^40.
  double error = __builtin_ldexp(B::truncation, int(key) - F::bits + 2 - F::bias) +
                 __builtin_ldexp(B::slack, e - F::bits + 2 - F::bias);
  error *= 1 + 0x1p-40;
  double rounded = error + E::rounding(__builtin_ldexp(1, e - F::bias) + error);
  *bound = E::rounding(1) > 0 && 2 * error < rounded ? 2 * error : rounded;
  return 0;
}

}  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
