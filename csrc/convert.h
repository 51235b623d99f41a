// Conversion of 16-bit floats to float32, the type of sums, exactly; and back, rounded once to nearest even.
#pragma once
#include "accumulate.h"

namespace compcoll {
namespace CC_LEVEL {

CC_HD uint16_t float_to_bfloat16(float f) {
  uint32_t u;
  __builtin_memcpy(&u, &f, 4);
  uint32_t rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;
  bool nan = (u & 0x7fffffff) > 0x7f800000;
  return uint16_t(nan ? (u >> 16 & 0x8000) | 0x7fc0 : rounded);
}

#if !defined(__CUDACC__)
template <class S, class D, class Convert>
inline void convert_array(const void* src, void* dst, uint64_t n, Convert convert) {
  const char* s = static_cast<const char*>(src);
  char* d = static_cast<char*>(dst);
  for (uint64_t i = 0; i < n; i++) store<D>(d + i * sizeof(D), convert(load<S>(s + i * sizeof(S))));
}

// False if no conversion is defined between these types.
inline bool convert(uint32_t dtype, uint32_t into_dtype, const void* src, void* dst, uint64_t n) {
  auto from_float16 = [](uint16_t h) { return float16_to_float(h); };
  auto from_bfloat16 = [](uint16_t h) { return bfloat16_to_float(h); };
  auto to_float16 = [](float f) { return float_to_float16(f); };
  auto to_bfloat16 = [](float f) { return float_to_bfloat16(f); };
  if (dtype == FLOAT16 && into_dtype == FLOAT32) convert_array<uint16_t, float>(src, dst, n, from_float16);
  else if (dtype == BFLOAT16 && into_dtype == FLOAT32)
    convert_array<uint16_t, float>(src, dst, n, from_bfloat16);
  else if (dtype == FLOAT32 && into_dtype == FLOAT16) convert_array<float, uint16_t>(src, dst, n, to_float16);
  else if (dtype == FLOAT32 && into_dtype == BFLOAT16)
    convert_array<float, uint16_t>(src, dst, n, to_bfloat16);
  else return false;
  return true;
}
#endif

}  // namespace CC_LEVEL
}  // namespace compcoll
