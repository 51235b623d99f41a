// Float types for a thread: csrc/cpu/real.h with one lane. Elements are converted to doubles exactly, and
// rounded once on the way back, so the bytes equal those of the CPU.
#pragma once
#include "../accumulate.h"
#include "../bits.h"
#include "job.cuh"

namespace compcoll {
namespace CC_LEVEL {
namespace cuda {

// Stored: an element's bits. Sum: the type for addition. unit, tiny, most: as in csrc/cpu/real.h. `number` is
// `value` for cases in which the bits of a NaN do not matter; `nearest` rounds numbers.
struct F64 {
  using Stored = uint64_t;
  using Sum = double;
  static constexpr Stored infinity = 0x7ff0000000000000ull;
  static constexpr double unit = 0x1p-53, tiny = 0x1p-1074, most = 0x1.fffffffffffffp+1023;
  static CC_HD Sum value(Stored bits) { return bit_cast<double>(bits); }
  static CC_HD Sum number(Stored bits) { return value(bits); }
  static CC_HD Sum round(double v) { return v; }
  static CC_HD Stored stored(Sum v) { return bit_cast<uint64_t>(v); }
  static CC_HD double widen(Sum v) { return v; }
};

struct F32 {
  using Stored = uint32_t;
  using Sum = float;
  static constexpr Stored infinity = 0x7f800000;
  static constexpr double unit = 0x1p-24, tiny = 0x1p-150, most = 0x1.fffffep+127;
  static CC_HD Sum value(Stored bits) { return bit_cast<float>(bits); }
  static CC_HD Sum number(Stored bits) { return value(bits); }
  static CC_HD Sum round(double v) { return to_float(v); }
  static CC_HD Stored stored(Sum v) { return bit_cast<uint32_t>(v); }
  static CC_HD double widen(Sum v) { return to_double(v); }
};

struct F16 {
  using Stored = uint16_t;
  using Sum = float;
  static constexpr Stored infinity = 0x7c00;
  static constexpr double unit = 0x1p-11, tiny = 0x1p-25, most = 65504;
  static CC_HD Sum value(Stored bits) { return float16_to_float(bits); }
  static CC_HD Sum number(Stored bits) { return float16_to_number(bits); }
  static CC_HD Stored nearest(Sum v) { return number_to_float16(v); }
  static CC_HD Sum round(double v) { return float16_to_float(float_to_float16(to_float(v))); }
  static CC_HD Stored stored(Sum v) { return float_to_float16(v); }
  static CC_HD double widen(Sum v) { return to_double(v); }
};

struct BF16 {
  using Stored = uint16_t;
  using Sum = float;
  static constexpr Stored infinity = 0x7f80;
  static constexpr double unit = 0x1p-8, tiny = 0x1p-134, most = 0x1.fep+127;
  static CC_HD Sum value(Stored bits) { return bfloat16_to_float(bits); }
  static CC_HD Sum number(Stored bits) { return value(bits); }
  static CC_HD Stored nearest(Sum v) {
#if defined(__CUDACC_RTC__) && __CUDA_ARCH__ >= 800
    Stored r;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(v));
    return r;
#else
    const uint32_t u = bit_cast<uint32_t>(v);
    return uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16);
#endif
  }
  static CC_HD Sum round(double v) {
    uint32_t u = bit_cast<uint32_t>(to_float(v));
    return bit_cast<float>((u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u);
  }
  static CC_HD Stored stored(Sum v) { return uint16_t(bit_cast<uint32_t>(v) >> 16); }
  static CC_HD double widen(Sum v) { return to_double(v); }
};

// Stores v as element i of an array, or adds it to an accumulator. If a sum is NaN, the processor chooses its
// bits.
template <class T, bool adding>
CC_HD void deliver(uint8_t* dst, uint64_t i, typename T::Sum v) {
  if constexpr (adding) {
    auto p = reinterpret_cast<typename T::Sum*>(dst) + i;
    *p = add(*p, v);
  } else {
    reinterpret_cast<typename T::Stored*>(dst)[i] = T::stored(v);
  }
}

}  // namespace cuda
}  // namespace CC_LEVEL
}  // namespace compcoll
