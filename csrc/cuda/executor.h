// CUDA's device code on the CPU, for tests: what csrc/cuda needs of the language, made of C++. Not a way to
// compute: the threads of a block are fibers that take turns at barriers, and blocks run one by one.
//
// A barrier that a thread never reaches ends the program, and float32 operators flush subnormals as CuPy's
// -ftz=true makes them do. Races between threads of a warp, or of blocks, are not found.
#pragma once
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ucontext.h>
#include <xmmintrin.h>

#define __CUDACC__ 1
#define __host__
#define __device__
#define __global__ __attribute__((visibility("default")))
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __constant__ static
#define __shared__ static

namespace executor {

struct Dim { unsigned x, y; };
inline Dim thread_index, block_index, grid_size;

constexpr int max_threads = 1024, stack_nbytes = 64 << 10;

struct Fiber {
  ucontext_t context;
  jmp_buf state;
  bool started, done;
};

// Something that all of some threads have to reach before any goes on.
struct Barrier {
  int arrived = 0;
  unsigned generation = 0;
};

inline Fiber fibers[max_threads];
inline char* stacks;
inline jmp_buf scheduler;
inline int current, n_threads;
inline bool moved;
inline Barrier block_barrier, warp_barriers[max_threads / 32];
inline uint64_t slots[max_threads];
inline void (*kernel)(const void*);
inline const void* argument;

inline void yield() {
  if (!_setjmp(fibers[current].state)) _longjmp(scheduler, 1);
}

inline void wait(Barrier& barrier, int of) {
  unsigned generation = barrier.generation;
  moved = true;
  if (++barrier.arrived == of) {
    barrier.arrived = 0;
    barrier.generation++;
    return;
  }
  while (barrier.generation == generation) yield();
  moved = true;
}

inline void warp_wait() { wait(warp_barriers[current / 32], 32); }

inline void begin() {
  kernel(argument);
  fibers[current].done = true;
  _longjmp(scheduler, 1);
}

inline void start(Fiber& fiber) {
  getcontext(&fiber.context);
  fiber.context.uc_stack = {stacks + size_t(current) * stack_nbytes, 0, size_t(stack_nbytes)};
  fiber.context.uc_link = nullptr;
  fiber.started = true;
  makecontext(&fiber.context, begin, 0);
  setcontext(&fiber.context);
}

// noinline: the fiber's state must not live in the scheduler's registers.
__attribute__((noinline)) inline void resume() {
  if (_setjmp(scheduler)) return;
  Fiber& fiber = fibers[current];
  if (!fiber.started) start(fiber);
  _longjmp(fiber.state, 1);
}

inline void run_block() {
  for (int i = 0; i < n_threads; i++) fibers[i].started = fibers[i].done = false;
  for (int left = n_threads; left;) {
    moved = false;
    left = 0;
    for (int i = 0; i < n_threads; i++) {
      if (fibers[i].done) continue;
      current = i;
      thread_index.x = unsigned(i);
      resume();
      moved = moved || fibers[i].done;
      left += !fibers[i].done;
    }
    if (left && !moved) {
      fprintf(stderr, "a barrier in block %u, %u that %d threads wait at and others never reach\n",
              block_index.x, block_index.y, left);
      abort();
    }
  }
}

template <class T>
inline T shuffle(T value, unsigned source) {
  static_assert(sizeof(T) <= 8, "a shuffle moves 64 bits at most");
  memcpy(&slots[current], &value, sizeof value);
  warp_wait();
  memcpy(&value, &slots[current / 32 * 32 + source % 32], sizeof value);
  warp_wait();
  return value;
}

inline unsigned ballot(bool predicate) {
  slots[current] = predicate;
  warp_wait();
  unsigned bits = 0;
  for (unsigned i = 0; i < 32; i++) bits |= unsigned(slots[current / 32 * 32 + i]) << i;
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

}  // namespace executor

#define threadIdx executor::thread_index
#define blockIdx executor::block_index
#define gridDim executor::grid_size

inline void __syncthreads() { executor::wait(executor::block_barrier, executor::n_threads); }
inline void __syncwarp() { executor::warp_wait(); }
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
