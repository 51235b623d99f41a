// Instructions without a portable name in CUDA.
#pragma once
#include "job.cuh"

namespace compcoll {
namespace CC_LEVEL {
namespace cuda {

// Byte i of the result is byte s of `high` above `low`, where s is bits 4 i to 4 i + 2 of `select`. If bit 4
// i + 3 is set, it is the sign of that byte, repeated 8 times.
CC_HD uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t select) {
#if defined(__CUDACC_RTC__)  // __byte_perm ignores the signs
  uint32_t r;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(low), "r"(high), "r"(select));
  return r;
#else
  uint32_t r = 0;
  for (uint32_t i = 0; i < 4; i++) {
    const uint32_t s = select >> 4 * i & 15, byte = (uint64_t(high) << 32 | low) >> 8 * (s & 7) & 255;
    r |= (s < 8 ? byte : byte >> 7 ? 255 : 0) << 8 * i;
  }
  return r;
#endif
}

// Bits of a where the mask has ones, else bits of b.
CC_HD uint32_t select_bits(uint32_t mask, uint32_t a, uint32_t b) {
#if defined(__CUDACC_RTC__)  // which uses two instructions if the mask is a constant
  uint32_t r;
  asm("lop3.b32 %0, %1, %2, %3, 0xe4;" : "=r"(r) : "r"(a), "r"(b), "r"(mask));
  return r;
#else
  return (a & mask) | (b & ~mask);
#endif
}

CC_HD uint32_t lowest_one(uint32_t v) { return uint32_t(__ffs(int(v))) - 1; }
CC_HD uint32_t lowest_one(uint64_t v) { return uint32_t(__ffsll(static_cast<long long>(v))) - 1; }
CC_HD uint32_t reverse_bits(uint32_t v) { return __brev(v); }

// Keeps the compiler from holding values in registers, of which it would have too few.
CC_HD void keep_in_memory() { asm volatile("" ::: "memory"); }

// Keeps a value from being recomputed at each use.
CC_HD void keep_in_register(uint32_t& v) { asm volatile("" : "+r"(v)); }

// The larger magnitude of two floats, as a bit pattern; a NaN is the largest.
CC_HD uint32_t larger_magnitude(uint32_t a, uint32_t b) {
#if defined(__CUDACC_RTC__) && __CUDA_ARCH__ >= 800  // signs are free here
  float x = __uint_as_float(a), y = __uint_as_float(b), r;
  asm("{.reg .f32 x, y; abs.f32 x, %1; abs.f32 y, %2; max.NaN.f32 %0, x, y;}" : "=f"(r) : "f"(x), "f"(y));
  return __float_as_uint(r);
#else
  a &= 0x7fffffff, b &= 0x7fffffff;
  return a > b ? a : b;
#endif
}
CC_HD uint64_t larger_magnitude(uint64_t a, uint64_t b) {
  a &= ~uint64_t(0) >> 1, b &= ~uint64_t(0) >> 1;
  return a > b ? a : b;
}

}  // namespace cuda
}  // namespace CC_LEVEL
}  // namespace compcoll
