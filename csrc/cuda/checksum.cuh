// Checksums of payloads, and the header before a payload.
#pragma once
#include "../bits.h"
#include "../checksum.h"
#include "job.cuh"

namespace compcoll {
namespace CC_LEVEL {
namespace cuda {

constexpr uint32_t golden = 0x9e3779b9u, header_nbytes = 80;  // compcoll/frame.py

CC_HD uint32_t checksum_word(uint32_t word, uint64_t i) {
  return checksum_mix<uint32_t>(word + uint32_t(i) * golden);
}

// One thread's part of the sum; `note` adds the parts of a warp's threads to the job's sum together.
struct Checksum {
  uint32_t sum = 0;
  bool wanted;

  CC_HD explicit Checksum(const Job& job) : wanted(job.result->wanted) {}
  // Adds word i of the payload, counted in 32 bits.
  CC_HD void add(uint32_t word, uint64_t i) {
    if (wanted) sum += checksum_word(word, i);
  }
  CC_HD void add(uint64_t word, uint64_t i) {
    add(uint32_t(word), 2 * i), add(uint32_t(word >> 32), 2 * i + 1);
  }
  CC_HD void note(const Job& job) const {
    const uint32_t all = warp_sum(sum);
    if (lane_id() == 0 && all) atomicAdd(&job.result->checksum, all);
  }
};

// Adds all bytes of a payload at any address.
CC_HD void checksum_of(const uint8_t* p, uint64_t nbytes, Checksum& sum) {
  const uint64_t words = nbytes / 4;
  uint64_t done = 0;
  if (aligned(p, 16)) {
    auto rows = reinterpret_cast<const Pack<uint32_t, 4>*>(p);
    for (uint64_t i = thread_id(); i < words / 4; i += thread_count()) {
      const auto row = rows[i];
      for (uint32_t k = 0; k < 4; k++) sum.add(row.v[k], 4 * i + k);
    }
    done = words / 4 * 4;
  }
  // The remaining bytes, or all of them at an unaligned address.
  for (uint64_t i = done + thread_id(); i < words + (nbytes % 4 != 0); i += thread_count()) {
    uint32_t word = 0;
    for (uint64_t k = 4 * i; k < 4 * i + 4 && k < nbytes; k++) word |= uint32_t(p[k]) << (8 * (k % 4));
    sum.add(word, i);
  }
}

// The bits of the total error: of the values before encoding, plus the codec's.
CC_HD uint64_t seal_bound(const Result& result) {
  CC_UNFLUSHED;
  double carried;
  __builtin_memcpy(&carried, result.header + 16, 8);
  return bit_cast<uint64_t>(carried + modulus_bound(result.parts, result.bound));
}

// Completes the header before an encoded frame's payload. Called by one whole warp. If there is no frame, the
// header has no magic bytes, and a status in place of the size.
CC_HD void seal(const Job& job) {
  const Result& result = *job.result;
  if (!result.header[0]) return;
  const uint32_t i = lane_id(), given = result.header[i < 20 ? i : 0];
  uint32_t word = i < 19 ? given : 0;
  const uint64_t total = seal_bound(result), nbytes = uint64_t(result.nbytes);
  const bool decided = result.params[0] | result.params[1];
  if (decided && i / 4 == 1) word = uint32_t(result.params[i / 2 % 2] >> 32 * (i % 2));
  if (i / 2 == 7) word = uint32_t(nbytes >> 32 * (i % 2));
  if (i / 2 == 8) word = uint32_t(total >> 32 * (i % 2));
  if (i == 18) word = result.wanted ? result.checksum : 0;
  if (i == 0 && result.nbytes < 0) word = 0;
  const uint32_t sum = warp_sum(i < 19 ? checksum_word(word, i) : 0);
  if (i < 20) reinterpret_cast<uint32_t*>(job.dst - header_nbytes)[i] = i < 19 ? word : sum;
}

// The end of a kernel, called by all threads of all blocks. When the last block arrives, its first thread
// calls finish(); returns true in that block's first warp.
template <class Finish>
CC_HD bool run_by_last_block(const Job& job, Finish finish) {
  CC_SHARED(uint32_t, last);
  __threadfence();  // makes this thread's results visible before its arrival
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(&job.result->arrived, 1u) + 1 == gridDim.x;
  __syncthreads();
  if (!last || threadIdx.x >= 32) return false;
  __threadfence();
  if (threadIdx.x == 0) {
    CC_UNFLUSHED;
    finish();
    job.result->arrived = 0;  // for the next kernel
  }
  __threadfence();
  __syncwarp();
  return true;
}

// Like run_by_last_block(), and completes the header of a frame that has one.
template <class Finish>
CC_HD void complete(const Job& job, Finish finish) {
  if (run_by_last_block(job, finish)) seal(job);
}
CC_HD void complete(const Job& job) {
  complete(job, [] {});
}

// The checksum of a payload that is to be decoded.
CC_HD void checksum(const Job& job) {
  Checksum sum(job);
  if (sum.wanted) checksum_of(job.src, job.nbytes, sum);
  sum.note(job);
}

// Checksum and header of an encoded payload, for encoders that do not compute them.
CC_HD void seal_payload(const Job& job) {
  Checksum sum(job);
  if (sum.wanted && job.result->nbytes > 0) checksum_of(job.dst, uint64_t(job.result->nbytes), sum);
  sum.note(job);
  complete(job);
}

}  // namespace cuda
}  // namespace CC_LEVEL
}  // namespace compcoll
