// dst[i] += src[i] for every element type: the addition of reductions. 16-bit floats add into float32.
#pragma once
#include "abi.h"
#include "lanes.h"

namespace compcoll {
namespace CC_LEVEL {

CC_HD float bfloat16_to_float(uint16_t h) {
  uint32_t u = uint32_t(h) << 16;
  float f;
  __builtin_memcpy(&f, &u, 4);
  return f;
}

#if defined(__CUDACC_RTC__)
// Hardware conversions: exact, or rounded to nearest even; they choose the bits of a NaN.
CC_HD float float16_to_number(uint16_t h) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
  return f;
}
CC_HD uint16_t number_to_float16(float f) {
  uint16_t h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
  return h;
}
// Like the above, but keep the bits of a NaN.
CC_HD float float16_to_float(uint16_t h) {
  return (h & 0x7fff) > 0x7c00 ? __uint_as_float(uint32_t(h & 0x8000) << 16 | 0x7f800000 | (h & 1023) << 13)
                               : float16_to_number(h);
}
CC_HD uint16_t float_to_float16(float f) {
  const uint32_t u = __float_as_uint(f);
  return (u & 0x7fffffff) > 0x7f800000 ? uint16_t((u >> 16 & 0x8000) | 0x7e00) : number_to_float16(f);
}
#else
// Exact for every bit pattern. Uses integers only, so no flush-to-zero mode affects subnormals.
CC_HD float float16_to_float(uint16_t h) {
  uint32_t sign = uint32_t(h & 0x8000) << 16, e = (h >> 10) & 31, m = h & 1023, u;
  if (e == 31) u = sign | 0x7f800000u | m << 13;
  else if (e) u = sign | (e + 112) << 23 | m << 13;
  else if (!m) u = sign;
  else {
    int shift = __builtin_clz(m) - 21;  // m = 1.xx * 2^(10 - shift)
    u = sign | uint32_t(113 - shift) << 23 | ((m << shift) & 1023) << 13;
  }
  float f;
  __builtin_memcpy(&f, &u, 4);
  return f;
}

CC_HD uint16_t float_to_float16(float f) {  // to nearest even
  uint32_t u;
  __builtin_memcpy(&u, &f, 4);
  uint32_t sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
  if (a > 0x7f800000) return uint16_t(sign | 0x7e00);
  if (a >= 0x47800000) return uint16_t(sign | 0x7c00);
  if (a >= 0x38800000) return uint16_t(sign | (((a + 0xfff + (a >> 13 & 1)) >> 13) - (112 << 10)));
  float magnitude;
  __builtin_memcpy(&magnitude, &a, 4);
  magnitude += 0.5f;  // its last place is float16's smallest subnormal
  __builtin_memcpy(&a, &magnitude, 4);
  return uint16_t(sign | (a - 0x3f000000));
}
CC_HD float float16_to_number(uint16_t h) { return float16_to_float(h); }
CC_HD uint16_t number_to_float16(float f) { return float_to_float16(f); }
#endif

#if !defined(__CUDACC__)
template <class S, class D, class Convert>
inline void add_array(const void* src, void* dst, uint64_t n, Convert convert) {
  const char* s = static_cast<const char*>(src);
  char* d = static_cast<char*>(dst);
  for (uint64_t i = 0; i < n; i++)
    store<D>(d + i * sizeof(D), D(load<D>(d + i * sizeof(D)) + convert(load<S>(s + i * sizeof(S)))));
}

// Integers wrap, as in MPI_SUM of every implementation that we know.
inline bool accumulate(uint32_t dtype, uint32_t acc_dtype, const void* src, void* dst, uint64_t n) {
  bool widened = dtype == FLOAT16 || dtype == BFLOAT16;
  if (acc_dtype != (widened ? uint32_t(FLOAT32) : dtype)) return false;
  auto same = [](auto x) { return x; };
  auto from_float16 = [](uint16_t h) { return float16_to_float(h); };
  auto from_bfloat16 = [](uint16_t h) { return bfloat16_to_float(h); };
  switch (dtype) {
    case INT8:
    case UINT8: add_array<uint8_t, uint8_t>(src, dst, n, same); break;
    case INT16:
    case UINT16: add_array<uint16_t, uint16_t>(src, dst, n, same); break;
    case INT32:
    case UINT32: add_array<uint32_t, uint32_t>(src, dst, n, same); break;
    case INT64:
    case UINT64: add_array<uint64_t, uint64_t>(src, dst, n, same); break;
    case FLOAT32: add_array<float, float>(src, dst, n, same); break;
    case FLOAT64: add_array<double, double>(src, dst, n, same); break;
    case COMPLEX64: add_array<float, float>(src, dst, 2 * n, same); break;
    case COMPLEX128: add_array<double, double>(src, dst, 2 * n, same); break;
    case FLOAT16: add_array<uint16_t, float>(src, dst, n, from_float16); break;
    case BFLOAT16: add_array<uint16_t, float>(src, dst, n, from_bfloat16); break;
    default: return false;
  }
  return true;
}

// Bit patterns W as magnitudes: of two numbers the larger one has the larger word, and non-finite numbers
// have the largest. Words are signed, because more machines compare those.
template <class W>
inline W largest_word(const void* values, uint64_t n) {
  constexpr W sign = W(1) << (8 * sizeof(W) - 1);
  const char* p = static_cast<const char*>(values);
  W most = 0;
  for (uint64_t i = 0; i < n; i++) {
    const W word = load<W>(p + i * sizeof(W)) & ~sign;
    most = word > most ? word : most;
  }
  return most;
}

// The largest magnitude of n floating-point values, real and imaginary parts alike; infinite or NaN if any
// value is; 0 for other types. Bounds of rounding errors are computed from it.
inline double largest(uint32_t dtype, const void* values, uint64_t n) {
  float f;
  double d;
  switch (dtype) {
    case FLOAT16: return float16_to_float(uint16_t(largest_word<int16_t>(values, n)));
    case BFLOAT16: return bfloat16_to_float(uint16_t(largest_word<int16_t>(values, n)));
    case COMPLEX64: n *= 2; [[fallthrough]];
    case FLOAT32: {
      const int32_t word = largest_word<int32_t>(values, n);
      __builtin_memcpy(&f, &word, sizeof f);
      return f;
    }
    case COMPLEX128: n *= 2; [[fallthrough]];
    case FLOAT64: {
      const int64_t word = largest_word<int64_t>(values, n);
      __builtin_memcpy(&d, &word, sizeof d);
      return d;
    }
    default: return 0;
  }
}
#endif

}  // namespace CC_LEVEL
}  // namespace compcoll
