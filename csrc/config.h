// Compiler switches, in one place: g++, clang++ and NVRTC read the same headers.
#pragma once

#ifdef __CUDACC_RTC__  // NVRTC finds no <cstdint>, and has its own names for built-in functions
using int8_t = signed char;
using int16_t = short;
using int32_t = int;
using int64_t = long long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long long;
using size_t = unsigned long;
#define __builtin_memcpy memcpy
#define __builtin_clz __clz
#define __builtin_ldexp(x, n) ldexp(double(x), n)
#define __builtin_frexp frexp
#else
#include <cstddef>
#include <cstdint>
#endif

#ifdef __CUDACC__
#define CC_HD __host__ __device__ __forceinline__
#else
#define CC_HD inline __attribute__((always_inline))
#endif

// The instruction-set level that this translation unit is built for. All code that is compiled more than once
// is in this namespace, so that code of one level is never linked into another.
#ifndef CC_LEVEL
#define CC_LEVEL baseline
#endif
