// Arithmetic in which float32 subnormals survive. CuPy compiles every kernel with -ftz=true, whatever the
// options say, so that operators and conversions flush them; PTX written out does as it says.
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
// 1 / v of a step, which has 8 bits of mantissa and a magnitude from 2^-126 to 2^126: on a GPU one refinement of
// the hardware's approximation is the nearest float then, without a look at the exponent.
template <class F>
CC_HD F reciprocal(F v) {
  return 1 / v;
}
// Between -most and most; not for NaN.
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
CC_HD float subtract(float a, float b) {  // a sign is flushed on its way, too
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
#elif defined(__CUDACC__)  // tests/native/executor.h, where the processor itself flushes
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
