// Operations across the lanes of a warp: sums, the "or" of all lanes, and bit transposition.
#pragma once
#include "bits.cuh"

namespace compcoll {
namespace CC_LEVEL {
namespace cuda {

CC_HD uint32_t warp_or(uint32_t v) {
#if defined(__CUDACC_RTC__) && __CUDA_ARCH__ >= 800
  return __reduce_or_sync(full_warp, v);
#else
  for (int s = 16; s; s /= 2) v |= __shfl_xor_sync(full_warp, v, s);
  return v;
#endif
}

// Adds the value of the lane `by` lanes below, if there is one.
template <class W>
CC_HD W add_from_below(W v, uint32_t by) {
  const W other = __shfl_up_sync(full_warp, v, by);
  return v + (lane_id() >= by ? other : 0);
}
#if defined(__CUDACC_RTC__)  // the shuffle itself tells whether there is such a lane
CC_HD uint32_t add_from_below(uint32_t v, uint32_t by) {
  asm volatile(  // volatile: otherwise the compiler might move it into divergent code
      "{.reg .pred p; .reg .u32 r; shfl.sync.up.b32 r|p, %0, %1, 0, 0xffffffff; @p add.u32 %0, %0, r;}"
      : "+r"(v)
      : "r"(by));
  return v;
}
#endif

// The sum over the lanes up to and including this one.
CC_HD uint32_t sum_upto(uint32_t v) {
#pragma unroll
  for (uint32_t s = 1; s < 32; s *= 2) v = add_from_below(v, s);
  return v;
}

// Transposes matrices of 32 x 32 bits of which each lane has a row. Values that differ by lane are computed
// once. In a step, lanes whose numbers differ in one bit exchange the bits whose positions differ in it.
struct Transposer {
  uint32_t halves, bytes, turn[3], keep[3];

  CC_HD Transposer() {
    const uint32_t lane = lane_id();
    halves = lane & 16 ? 0x3276 : 0x5410;
    bytes = lane & 8 ? 0x3715 : 0x6240;
    for (uint32_t i = 0; i < 3; i++) {
      const uint32_t j = 4 >> i, low = ~0u / ((1u << j) + 1);
      turn[i] = lane & j ? 32 - j : j;
      keep[i] = lane & j ? ~low : low;
      keep_in_register(turn[i]), keep_in_register(keep[i]);
    }
    keep_in_register(halves), keep_in_register(bytes);
  }
  CC_HD uint32_t operator()(uint32_t row) const {
    row = permute_bytes(row, __shfl_xor_sync(full_warp, row, 16), halves);
    row = permute_bytes(row, __shfl_xor_sync(full_warp, row, 8), bytes);
#pragma unroll
    for (int i = 0; i < 3; i++) {
      const uint32_t other = __shfl_xor_sync(full_warp, row, 4 >> i);
      row = select_bits(keep[i], row, __funnelshift_l(other, other, turn[i]));
    }
    return row;
  }
};

}  // namespace cuda
}  // namespace CC_LEVEL
}  // namespace compcoll
