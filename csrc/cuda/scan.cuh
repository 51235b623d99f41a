// Where blocks of different sizes begin.
#pragma once
#include "job.cuh"

namespace compcoll {
namespace CC_LEVEL {
namespace cuda {

// The sizes of blocks in scratch become offsets; the result gets their sum. One block of threads.
CC_HD void scan_sizes(const Job& job, uint64_t blocks) {
  constexpr uint32_t each = 16;
  __shared__ uint32_t sums[CC_WARPS];
  if (blockIdx.x) return;
  const uint32_t lane = lane_id(), warp = threadIdx.x / 32;
  uint64_t total = 0;
  for (uint64_t tile = 0; tile < blocks; tile += each * CC_CTA) {
    const uint64_t begin = tile + each * threadIdx.x;
    uint32_t own = 0;
    for (uint64_t i = begin; i < begin + each && i < blocks; i++) own += job.scratch[i];
    uint32_t sum = own;
    for (uint32_t s = 1; s < 32; s *= 2) {
      const uint32_t other = __shfl_up_sync(full_warp, sum, s);
      sum += lane >= s ? other : 0;
    }
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    uint64_t at = total + (sum - own);
    for (uint32_t w = 0; w < CC_WARPS; w++) {
      if (w < warp) at += sums[w];
      total += sums[w];
    }
    for (uint64_t i = begin; i < begin + each && i < blocks; i++) {
      const uint32_t nbytes = job.scratch[i];
      job.scratch[i] = uint32_t(at);
      at += nbytes;
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) job.result->extent[0] = total;
}

}  // namespace cuda
}  // namespace CC_LEVEL
}  // namespace compcoll
