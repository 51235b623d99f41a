// Upper limits of the rounding errors of a sum, from its values: compcoll/engine/rounding.py derives them.
#pragma once
#include <cmath>

#include "../abi.h"

namespace compcoll {
namespace engine {

// Unit roundoff, half of the smallest positive number (float64's is no number), and the largest one.
struct Units { double unit, tiny, most; };

inline Units units_of(uint32_t dtype) {
  switch (dtype) {
    case FLOAT16: return {0x1p-11, 0x1p-25, 65504};
    case BFLOAT16: return {0x1p-8, 0x1p-134, 0x1.fep+127};
    case FLOAT32: return {0x1p-24, 0x1p-150, 0x1.fffffep+127};
    case FLOAT64: return {0x1p-53, 0x1p-1074, 0x1.fffffffffffffp+1023};
    default: return {0, 0, 0};
  }
}

// The error of additions whose sums have at most this magnitude; where one is not finite nothing is known.
inline double of_addition(uint32_t dtype, double most) {
  return std::isfinite(most) ? units_of(dtype).unit * most : std::nan("");
}

// The error of rounding to values of at most this magnitude.
inline double of_result(uint32_t dtype, double most) {
  return of_addition(dtype, most) + units_of(dtype).tiny;
}

}  // namespace engine
}  // namespace compcoll
