// Arithmetic that keeps float32 subnormals. CuPy compiles every kernel with -ftz=true, whatever the options
// say, so operators and conversions flush subnormals. Inline PTX does not.
#pragma once
#include "config.h"

namespace compcoll {
namespace CC_LEVEL {

template <class F>
CC_HD F multiply(F a, F b) {
  return a * b;
}
template <class F>
CC_HD F add(F a, F b) {
  return a + b;
}
template <class F>
CC_HD F subtract(F a, F b) {
  return a - b;
}
// 1 / v of a step, which has 8 bits of mantissa and a magnitude from 2^-126 to 2^126. On a GPU, one
// refinement of the hardware's approximation is then the nearest float, whatever the exponent.
template <class F>
CC_HD F reciprocal(F v) {
  return 1 / v;
}
// Clamps to -most ... most; not for NaN.
template <class F>
CC_HD F clamp(F v, F most) {
  return v > most ? most : v < -most ? -most : v;
}

#if defined(__CUDACC_RTC__)
CC_HD float reciprocal(float v) {
  float r, e;
  asm("{.reg .f32 v; rcp.approx.ftz.f32 %0, %2; neg.f32 v, %2; "
      "fma.rn.f32 %1, v, %0, %3; fma.rn.f32 %0, %0, %1, %0;}"
      : "=&f"(r), "=&f"(e)
      : "f"(v), "f"(1.0f));
  return r;
}
CC_HD float clamp(float v, float most) {
  asm("min.f32 %0, %0, %1; max.f32 %0, %0, %2;" : "+f"(v) : "f"(most), "f"(-most));
  return v;
}
CC_HD float multiply(float a, float b) {
  float r;
  asm("mul.rn.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
CC_HD float add(float a, float b) {
  float r;
  asm("add.rn.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
CC_HD float subtract(float a, float b) {  // sign changes flush subnormals, too
  float r;
  asm("sub.rn.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
CC_HD double to_double(float a) {
  double r;
  asm("cvt.f64.f32 %0, %1;" : "=d"(r) : "f"(a));
  return r;
}
CC_HD float to_float(double a) {
  float r;
  asm("cvt.rn.f32.f64 %0, %1;" : "=f"(r) : "d"(a));
  return r;
}
#elif defined(__CUDACC__)  // tests/native/executor.h: the processor itself flushes
CC_HD float multiply(float a, float b) {
  return executor::unflushed(a, [](float x, float y) { return x * y; }, b);
}
CC_HD float add(float a, float b) {
  return executor::unflushed(a, [](float x, float y) { return x + y; }, b);
}
CC_HD float subtract(float a, float b) {
  return executor::unflushed(a, [](float x, float y) { return x - y; }, b);
}
CC_HD double to_double(float a) {
  return executor::unflushed(a, [](float x, float) { return double(x); });
}
CC_HD float to_float(double a) {
  return executor::unflushed(a, [](double x, double) { return float(x); });
}
#endif

}  // namespace CC_LEVEL
}  // namespace compcoll
