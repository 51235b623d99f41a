// Decoupled look-back: finds the starts of pieces of different sizes in the pass that makes the pieces
// (Merrill, Garland: Single-pass parallel prefix scan with decoupled look-back, NVIDIA NVR-2016-002).
//
// A job's tiles are drawn from a counter. A block that draws a tile knows that all tiles before it belong to
// running blocks, in whatever order blocks are scheduled, so waiting for those tiles ends. A tile first
// publishes its own size, then the sum up to its end. The value and its kind are in one word, so no fences
// are needed.
//
// job.scratch: uint64, zeroed: the counter, then a word for each tile, or several if a kernel computes
// several sums; csrc/engine/kernels.cpp allocates as much.
#pragma once
#include "job.cuh"

namespace compcoll {
namespace CC_LEVEL {
namespace cuda {

// Upper bits of a tile's word; 0 if nothing is published yet.
constexpr uint64_t own_size = 1ull << 62, sum_to_end = 1ull << 63, size_mask = own_size - 1;

#if defined(__CUDACC_RTC__)
CC_HD void others_may_run() {}
// For a generic address, atomicAdd would first check the kind of memory.
CC_HD uint64_t count_up(uint64_t* word) {
  uint64_t v;
  asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], 1;" : "=l"(v) : "l"(__cvta_generic_to_global(word))
               : "memory");
  return v;
}
CC_HD uint64_t wait_for(const uint64_t* word) {
  uint64_t v;
  do asm volatile("ld.relaxed.gpu.u64 %0, [%1];" : "=l"(v) : "l"(word) : "memory");
  while (!(v & ~size_mask));
  return v;
}
CC_HD void publish(uint64_t* word, uint64_t v) {
  asm volatile("st.relaxed.gpu.u64 [%0], %1;" : : "l"(word), "l"(v) : "memory");
}
#else
CC_HD void others_may_run() { executor::pause(); }
CC_HD uint64_t count_up(uint64_t* word) { return (*word)++; }
CC_HD uint64_t wait_for(const uint64_t* word) {
  others_may_run();
  while (!(*word & ~size_mask)) executor::waits();
  return *word;
}
CC_HD void publish(uint64_t* word, uint64_t v) {
  others_may_run();
  *word = v;
  executor::published();
}
#endif

// Draws the next free tile; the same for all threads of a block, which all call this.
CC_HD uint64_t draw_tile(const Job& job, uint64_t& slot) {
  __syncthreads();  // all have read the previous one
  others_may_run();
  if (threadIdx.x == 0) slot = count_up(reinterpret_cast<uint64_t*>(job.scratch));
  __syncthreads();
  return slot;
}

CC_HD uint64_t* tile_words(const Job& job) { return reinterpret_cast<uint64_t*>(job.scratch) + 1; }

// The sum of the sizes of all tiles before this one, which has `size`. Called by one whole warp.
CC_HD uint64_t look_back(uint64_t* words, uint64_t tile, uint64_t size) {
  const uint32_t lane = lane_id();
  uint64_t before = 0;
  if (tile) {
    if (lane == 0) publish(words + tile, own_size | size);
    for (uint64_t end = tile, done = 0; !done; end -= 32) {
      // 32 tiles, the nearest in lane 0; the sum before the first tile is 0.
      const uint64_t word = lane < end ? wait_for(words + (end - 1 - lane)) : sum_to_end;
      done = __ballot_sync(full_warp, word >= sum_to_end);
      const uint32_t last = done ? __ffs(int(done)) - 1 : 31;
      before += warp_sum(lane <= last ? word & size_mask : 0);
    }
  }
  if (lane == 0) publish(words + tile, sum_to_end | (before + size));
  return before;
}

// In shared memory; one for each running sum.
struct TileSums {
  uint64_t count[CC_WARPS], begin;
};

// Shared memory of a kernel with one running sum.
struct TilePass {
  TileSums sums;
  uint64_t drawn;
};

// The sum of the counts of all warps before this one, in this tile and earlier tiles. Called by all threads
// of blocks of CC_CTA, once per drawn tile.
CC_HD uint64_t sum_before_warp(uint64_t* words, uint64_t tile, uint64_t count, TileSums& sums) {
  const uint32_t warp = threadIdx.x / 32;
  if (lane_id() == 0) sums.count[warp] = count;
  __syncthreads();
  if (warp == 0) {
    uint64_t size = 0;
    for (uint32_t w = 0; w < CC_WARPS; w++) size += sums.count[w];
    const uint64_t begin = look_back(words, tile, size);
    if (lane_id() == 0) sums.begin = begin;
  }
  __syncthreads();
  uint64_t begin = sums.begin;
  for (uint32_t w = 0; w < warp; w++) begin += sums.count[w];
  return begin;
}

}  // namespace cuda
}  // namespace CC_LEVEL
}  // namespace compcoll
