// Upper bounds on the rounding errors of a sum of real numbers, computed from the sum's values.
//
// Let u be the unit roundoff of a type (2^-24 for float32) and fl(x) the nearest value to x. Then |fl(x) - x|
// is at most u |fl(x)|, or at most half of the smallest number if fl(x) is below the normal range; an
// addition is exact there (Higham, "Accuracy and Stability of Numerical Algorithms", 2002, sections 2.1 and
// 2.2). So each addition to an accumulator with the values s adds at most u max |s| to the errors of its two
// terms, and one rounding of the result to a narrower type adds at most u max |result| plus half of that
// type's smallest number. The bound u max |s| uses the computed sums, so it holds under cancellation, and the
// terms need not be known. If a value is not finite, nothing is known about the others: a sum may have
// overflowed.
#pragma once
#include <cmath>

#include "../abi.h"

namespace compcoll {
namespace engine {

// Unit roundoff, half of the smallest positive number (for float64 that is 0), and the largest number.
struct Units { double unit, tiny, most; };

inline Units units_of(uint32_t dtype) {
  switch (dtype) {
    case FLOAT16: return {0x1p-11, 0x1p-25, 65504};
    case BFLOAT16: return {0x1p-8, 0x1p-134, 0x1.fep+127};
    case FLOAT32:
    case COMPLEX64: return {0x1p-24, 0x1p-150, 0x1.fffffep+127};
    case FLOAT64:
    case COMPLEX128: return {0x1p-53, 0x1p-1074, 0x1.fffffffffffffp+1023};
    default: return {0, 0, 0};
  }
}

// The error of additions whose sums have at most this magnitude; NaN if a sum is not finite.
inline double of_addition(uint32_t dtype, double most) {
  return std::isfinite(most) ? units_of(dtype).unit * most : std::nan("");
}

// The error of rounding to values of at most this magnitude.
inline double of_result(uint32_t dtype, double most) {
  return of_addition(dtype, most) + units_of(dtype).tiny;
}

}  // namespace engine
}  // namespace compcoll
