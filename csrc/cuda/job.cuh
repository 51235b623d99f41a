// Definitions for all kernels: the arguments of one chunk, its results, and how threads divide it.
//
// Every kernel has one parameter, an array of jobs. blockIdx.y chooses the job, so that one launch does all
// peers' chunks of a collective; the threads along x share it in strides, however many they are.
#pragma once
#include "../abi.h"
#include "../arithmetic.h"

#if defined(__CUDACC_RTC__)  // a variable of the block; tests/native/executor.h has the other one
#define CC_SHARED(type, name) __shared__ type name
#define CC_UNFLUSHED  // float64 has all of its subnormals there
#else
#define CC_UNFLUSHED const executor::Unflushed unflushed
#endif

#define CC_CTA 128  // threads of a block, where a kernel does not say otherwise
#define CC_WARPS (CC_CTA / 32)

namespace compcoll {
namespace CC_LEVEL {
namespace cuda {

// Zeroed before the first kernel of a job, but for what says otherwise. compcoll/devices/kernels.py has the
// same layout.
struct Result {
  int64_t nbytes;      // payload bytes, or a Status
  double bound;        // of real numbers
  uint32_t bad;        // not 0: the values, or the payload, are not what the codec takes
  uint32_t checksum;   // of the payload
  uint64_t extent[3];  // maxima that the codec needs for status and bound
  uint64_t params[2];  // the header words, where the data decide them
  uint32_t arrived;    // blocks of threads that are done with the job
  uint32_t wanted;     // given: whether anybody asks for the checksum
  uint64_t parts;      // given where a frame is made: whether values are the parts of complex numbers
  uint32_t header[20];  // given where a frame is made: its header, but for what is known last; else zeros
};

struct Job {
  const uint8_t* src;
  uint8_t* dst;
  uint64_t n;          // real values: two for a complex number
  uint64_t nbytes;     // decoding: the payload's; encoding: the most that it may have
  uint64_t params[2];  // the words of the frame header
  Result* result;
  uint32_t* scratch;   // of those kernels that say so, zeroed
};

// Bytes that an encoder may write behind job.nbytes; compcoll/codecs/base.py has the same.
constexpr uint64_t slack = 64;

constexpr uint32_t full_warp = 0xffffffffu;

// In blocks of `threads`.
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

// The maximum over a job, one atomic a warp. A word of 32 bits is the lower half of its 64.
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

// A kernel of this name that gives its job to a function: blocks of so many threads, of which a
// multiprocessor shall hold so many.
#define CC_KERNEL_OF(threads, resident, name, ...)                              \
  extern "C" __global__ void __launch_bounds__(threads, resident) name(         \
      const compcoll::CC_LEVEL::cuda::Job* jobs) {                              \
    using namespace compcoll::CC_LEVEL::cuda;                                   \
    const Job job = jobs[blockIdx.y];                                           \
    __VA_ARGS__(job);                                                           \
  }
// With 8 blocks asked for, the compiler takes up to 64 registers; left to itself it spills in order to fit
// 16.
#define CC_KERNEL(name, ...) CC_KERNEL_OF(CC_CTA, 8, name, __VA_ARGS__)
// For those that need more, on some architectures at least: up to 80.
#define CC_WIDE_KERNEL(name, ...) CC_KERNEL_OF(CC_CTA, 6, name, __VA_ARGS__)
