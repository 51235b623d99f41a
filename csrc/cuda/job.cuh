// Definitions for all kernels: the arguments for one chunk, its results, and how threads divide it.
//
// Every kernel has one parameter, an array of jobs. blockIdx.y is the index of the job, so that one launch
// handles the chunks of all peers in a collective. The threads along x divide a job in strides, for any
// number of threads.
#pragma once
#include "../abi.h"
#include "../arithmetic.h"

#if defined(__CUDACC_RTC__)  // a variable of the block; for tests, defined in tests/native/executor.h
#define CC_SHARED(type, name) __shared__ type name
#define CC_UNFLUSHED  // float64 keeps all of its subnormals on a GPU
#else
#define CC_UNFLUSHED const executor::Unflushed unflushed
#endif

#define CC_CTA 128  // threads in a block, unless a kernel says otherwise
#define CC_WARPS (CC_CTA / 32)

namespace compcoll {
namespace CC_LEVEL {
namespace cuda {

// Zeroed before the first kernel of a job, except as noted. csrc/engine/kernels.h has the same layout.
struct Result {
  int64_t nbytes;      // payload bytes, or a Status
  double bound;        // of real numbers
  uint32_t bad;        // not 0: the codec does not accept the values, or the payload
  uint32_t checksum;   // of the payload
  uint64_t extent[3];  // maxima from which the codec computes status and bound
  uint64_t params[2];  // header words that depend on the data
  uint32_t arrived;    // number of blocks of threads that have finished the job
  uint32_t wanted;     // input: 1 if the checksum is needed
  uint64_t parts;      // input of encoders: 1 if values are parts of complex numbers
  uint32_t header[20];  // input of encoders: the frame's header but for fields that are known last; else 0
};

struct Job {
  const uint8_t* src;
  uint8_t* dst;
  uint64_t n;          // number of real values: two per complex number
  uint64_t nbytes;     // decoding: payload size; encoding: its limit
  uint64_t params[2];  // the header's words
  Result* result;
  uint32_t* scratch;   // zeroed, for kernels that use it
};

// Bytes that an encoder may write after job.nbytes; compcoll/frame.py has the same.
constexpr uint64_t slack = 64;

constexpr uint32_t full_warp = 0xffffffffu;

// For blocks of `threads` threads.
CC_HD uint32_t lane_id() { return threadIdx.x % 32; }
template <uint32_t threads = CC_CTA>
CC_HD uint64_t warp_id() { return uint64_t(blockIdx.x) * (threads / 32) + threadIdx.x / 32; }
template <uint32_t threads = CC_CTA>
CC_HD uint64_t warp_count() { return uint64_t(gridDim.x) * (threads / 32); }
template <uint32_t threads = CC_CTA>
CC_HD uint64_t thread_id() { return uint64_t(blockIdx.x) * threads + threadIdx.x; }
template <uint32_t threads = CC_CTA>
CC_HD uint64_t thread_count() { return uint64_t(gridDim.x) * threads; }

template <class W>
CC_HD W warp_max(W v) {
  for (int s = 16; s; s /= 2) {
    W other = __shfl_xor_sync(full_warp, v, s);
    v = other > v ? other : v;
  }
  return v;
}

#if defined(__CUDACC_RTC__) && __CUDA_ARCH__ >= 800
CC_HD uint32_t warp_max(uint32_t v) { return __reduce_max_sync(full_warp, v); }
#endif

template <class W>
CC_HD W warp_sum(W v) {
  for (int s = 16; s; s /= 2) v += __shfl_xor_sync(full_warp, v, s);
  return v;
}

// The maximum over a job, with one atomic per warp. A 32-bit word is the lower half of the 64 bits.
CC_HD void note_max(uint64_t* at, uint32_t v) {
  v = warp_max(v);
  if (lane_id() == 0) atomicMax(reinterpret_cast<unsigned int*>(at), v);
}
CC_HD void note_max(uint64_t* at, uint64_t v) {
  v = warp_max(v);
  if (lane_id() == 0)
    atomicMax(reinterpret_cast<unsigned long long*>(at), static_cast<unsigned long long>(v));
}

// N values that are loaded or stored at once.
template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
  T v[N];
};

template <bool first, class A, class B>
struct Choice {
  using type = A;
};
template <class A, class B>
struct Choice<false, A, B> {
  using type = B;
};

CC_HD bool aligned(const void* p, uint32_t to) { return reinterpret_cast<size_t>(p) % to == 0; }

}  // namespace cuda
}  // namespace CC_LEVEL
}  // namespace compcoll

// Defines a kernel that passes its job to a function. Its blocks have `threads` threads, and a multiprocessor
// can hold `resident` blocks.
#define CC_KERNEL_OF(threads, resident, name, ...)                              \
  extern "C" __global__ void __launch_bounds__(threads, resident) name(         \
      const compcoll::CC_LEVEL::cuda::Job* jobs) {                              \
    using namespace compcoll::CC_LEVEL::cuda;                                   \
    const Job job = jobs[blockIdx.y];                                           \
    __VA_ARGS__(job);                                                           \
  }
// For 8 resident blocks, the compiler uses up to 64 registers; by default it spills in order to fit 16.
#define CC_KERNEL(name, ...) CC_KERNEL_OF(CC_CTA, 8, name, __VA_ARGS__)
// For kernels that need more, at least on some architectures: up to 80.
#define CC_WIDE_KERNEL(name, ...) CC_KERNEL_OF(CC_CTA, 6, name, __VA_ARGS__)
