// CUDA device code on the CPU, for tests: the parts of the language that csrc/cuda needs, in C++. For
// checking only, not for speed: threads are fibers that take turns (fibers.h).
//
// Float32 operators flush subnormals, as under CuPy's -ftz=true. Memory is sequentially consistent, so
// missing fences are not detected.
#pragma once
#include <cstdint>
#include <cstring>
#include <xmmintrin.h>

#include "fibers.h"

#define __CUDACC__ 1
#define __host__
#define __device__
#define __global__ __attribute__((visibility("default")))
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __constant__ static
#define CC_SHARED(type, name) type& name = executor::shared<type>([] {})

namespace executor {

// Checks a mask: in these kernels, all masks are the whole warp's.
inline void check(unsigned mask, const SourceLocation& place) {
  if (mask != ~0u) fail("%s of the lanes %08x at %s:%d", place.what, mask, place.file, place.line);
}

template <class T>
inline T shuffle(unsigned mask, T value, unsigned source, SourceLocation place) {
  static_assert(sizeof(T) <= 8, "a shuffle moves 64 bits at most");
  check(mask, place);
  memcpy(&block->slots[current], &value, sizeof value);
  warp_wait(place);
  memcpy(&value, &block->slots[current / 32 * 32 + source % 32], sizeof value);
  warp_wait(place);
  return value;
}

inline unsigned ballot(unsigned mask, bool predicate, SourceLocation place) {
  check(mask, place);
  block->slots[current] = predicate;
  warp_wait(place);
  unsigned bits = 0;
  for (unsigned i = 0; i < 32; i++) bits |= unsigned(block->slots[current / 32 * 32 + i]) << i;
  warp_wait(place);
  return bits;
}

constexpr unsigned flush = 0x8040;  // MXCSR: flush to zero, denormals are zero

// Computes with subnormals; volatile keeps the operation between the two changes of mode.
template <class F, class Op>
__attribute__((noinline)) auto unflushed(F a, Op op, F b = F()) {
  volatile F x = a, y = b;
  unsigned mode = _mm_getcsr();
  _mm_setcsr(mode & ~flush);
  volatile auto r = op(x, y);
  _mm_setcsr(mode);
  return decltype(op(a, b))(r);
}

// In this scope, nothing is flushed.
struct Unflushed {
  const unsigned mode = _mm_getcsr();
  Unflushed() { _mm_setcsr(mode & ~flush); }
  ~Unflushed() { _mm_setcsr(mode); }
};

}  // namespace executor

#define threadIdx executor::thread_index
#define blockIdx executor::block_index
#define gridDim executor::grid_size

// Default arguments with the position of the call.
#define CC_PLACE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(CC_PLACE) { executor::block_wait({"__syncthreads", file, line}); }
inline void __syncwarp(CC_PLACE) { executor::warp_wait({"__syncwarp", file, line}); }
inline void __threadfence() {}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T v, int of, CC_PLACE) {
  return executor::shuffle(mask, v, unsigned(executor::current % 32 ^ of), {"__shfl_xor_sync", file, line});
}
template <class T>
inline T __shfl_sync(unsigned mask, T v, int from, CC_PLACE) {
  return executor::shuffle(mask, v, unsigned(from), {"__shfl_sync", file, line});
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T v, int by, CC_PLACE) {
  const int lane = executor::current % 32, from = lane - by;
  return executor::shuffle(mask, v, unsigned(from < 0 ? lane : from), {"__shfl_up_sync", file, line});
}
inline unsigned __ballot_sync(unsigned mask, bool predicate, CC_PLACE) {
  return executor::ballot(mask, predicate, {"__ballot_sync", file, line});
}

// Functions called by the compiler's checks (-fsanitize=alignment,shift,bounds); their first argument points
// to the position in the source.
namespace executor {
struct Checked {
  const char* file;
  uint32_t line, column;
};
}  // namespace executor
#define CC_CHECK(name, ...)                                          \
  extern "C" __attribute__((weak, used)) void __ubsan_handle_##name( \
      const executor::Checked* at, ##__VA_ARGS__)
CC_CHECK(shift_out_of_bounds, uintptr_t, uintptr_t) {
  executor::fail("a shift by too much at %s:%u", at->file, at->line);
}
CC_CHECK(out_of_bounds, uintptr_t) { executor::fail("an index too large at %s:%u", at->file, at->line); }
CC_CHECK(type_mismatch_v1, uintptr_t p) {
  executor::fail("the address %#lx, which is not aligned, at %s:%u", p, at->file, at->line);
}

template <class T>
inline T atomicMax(T* p, T v) {
  T old = *p;
  if (v > old) *p = v;
  return old;
}
template <class T>
inline T atomicAdd(T* p, T v) {
  T old = *p;
  *p += v;
  return old;
}
template <class T>
inline T atomicOr(T* p, T v) {
  T old = *p;
  *p |= v;
  return old;
}

inline int __clz(unsigned v) { return v ? __builtin_clz(v) : 32; }
inline int __clzll(unsigned long long v) { return v ? __builtin_clzll(v) : 64; }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __ffsll(long long v) { return __builtin_ffsll(v); }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline unsigned __brev(unsigned v) {
  unsigned r = 0;
  for (int i = 0; i < 32; i++) r |= (v >> i & 1) << (31 - i);
  return r;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned n) {
  return unsigned((uint64_t(high) << 32 | low) << (n % 32) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned n) {
  return unsigned((uint64_t(high) << 32 | low) >> (n % 32));
}
