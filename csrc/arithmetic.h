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

#if defined(__CUDACC_RTC__)
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
#elif defined(__CUDACC__)  // csrc/cuda/executor.h, where the processor itself flushes
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
