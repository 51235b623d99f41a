// CUDA's device code on the CPU, for tests: what csrc/cuda needs of the language, made of C++. Not a way to
// compute: the threads are fibers that take turns (fibers.h).
//
// Float32 operators flush subnormals as CuPy's -ftz=true makes them do. Memory is sequentially consistent, so
// fences that are missing are not found.
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

template <class T>
inline T shuffle(T value, unsigned source) {
  static_assert(sizeof(T) <= 8, "a shuffle moves 64 bits at most");
  memcpy(&block->slots[current], &value, sizeof value);
  warp_wait();
  memcpy(&value, &block->slots[current / 32 * 32 + source % 32], sizeof value);
  warp_wait();
  return value;
}

inline unsigned ballot(bool predicate) {
  block->slots[current] = predicate;
  warp_wait();
  unsigned bits = 0;
  for (unsigned i = 0; i < 32; i++) bits |= unsigned(block->slots[current / 32 * 32 + i]) << i;
  warp_wait();
  return bits;
}

constexpr unsigned flush = 0x8040;  // MXCSR: flush to zero, denormals are zero

// An operation with subnormals; volatile keeps it between the two changes of mode.
template <class F, class Op>
__attribute__((noinline)) auto unflushed(F a, Op op, F b = F()) {
  volatile F x = a, y = b;
  unsigned mode = _mm_getcsr();
  _mm_setcsr(mode & ~flush);
  volatile auto r = op(x, y);
  _mm_setcsr(mode);
  return decltype(op(a, b))(r);
}

// A scope in which nothing is flushed.
struct Unflushed {
  const unsigned mode = _mm_getcsr();
  Unflushed() { _mm_setcsr(mode & ~flush); }
  ~Unflushed() { _mm_setcsr(mode); }
};

}  // namespace executor

#define threadIdx executor::thread_index
#define blockIdx executor::block_index
#define gridDim executor::grid_size

inline void __syncthreads() { executor::block_wait(); }
inline void __syncwarp() { executor::warp_wait(); }
inline void __threadfence() {}
template <class T>
inline T __shfl_xor_sync(unsigned, T v, int mask) {
  return executor::shuffle(v, executor::current % 32 ^ mask);
}
template <class T>
inline T __shfl_sync(unsigned, T v, int from) {
  return executor::shuffle(v, from);
}
template <class T>
inline T __shfl_up_sync(unsigned, T v, int by) {
  int from = executor::current % 32 - by;
  return executor::shuffle(v, from < 0 ? executor::current % 32 : from);
}
inline unsigned __ballot_sync(unsigned, bool predicate) { return executor::ballot(predicate); }

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
