// The checksum of payloads, and the header in front of them.
#pragma once
#include "../checksum.h"
#include "job.cuh"

namespace compcoll {
namespace CC_LEVEL {
namespace cuda {

constexpr uint32_t golden = 0x9e3779b9u, header_nbytes = 80;  // compcoll/frame.py

CC_HD uint32_t checksum_word(uint32_t word, uint64_t i) {
  return checksum_mix<uint32_t>(word + uint32_t(i) * golden);
}

// Of the payload at job.src: what `result` says of its size where an encoder did, else job.nbytes.
CC_HD void checksum(const Job& job) {
  const bool encoded = job.result->nbytes != 0;
  const uint64_t nbytes = !encoded ? job.nbytes : job.result->nbytes > 0 ? job.result->nbytes : 0;
  const uint64_t words = nbytes / 4;
  uint64_t done = 0;
  uint32_t sum = 0;
  if (aligned(job.src, 16)) {
    auto rows = reinterpret_cast<const Pack<uint32_t, 4>*>(job.src);
    for (uint64_t i = thread_id(); i < words / 4; i += thread_count()) {
      auto row = rows[i];
      for (uint32_t k = 0; k < 4; k++) sum += checksum_word(row.v[k], 4 * i + k);
    }
    done = words / 4 * 4;
  }
  // What is left, and any byte address.
  for (uint64_t i = done + thread_id(); i < words + (nbytes % 4 != 0); i += thread_count()) {
    uint32_t word = 0;
    for (uint64_t k = 4 * i; k < 4 * i + 4 && k < nbytes; k++) word |= uint32_t(job.src[k]) << (8 * (k % 4));
    sum += checksum_word(word, i);
  }
  sum = warp_sum(sum);
  if (lane_id() == 0 && sum) atomicAdd(&job.result->checksum, sum);
}

// Completes the header of an encoded frame. src: a header in which payload bytes and checksums are missing,
// the bound is what the values carry already, and the codec's words are there. dst: the frame.
CC_HD void seal(const Job& job) {
  if (thread_id()) return;
  const Result& result = *job.result;
  if (result.nbytes < 0) return;
  alignas(8) uint32_t header[header_nbytes / 4];
  for (uint32_t i = 0; i < header_nbytes / 4; i++) header[i] = reinterpret_cast<const uint32_t*>(job.src)[i];
  double bound;
  __builtin_memcpy(&bound, header + 16, 8);
  bound += result.bound;
  __builtin_memcpy(header + 16, &bound, 8);
  header[14] = uint32_t(result.nbytes), header[15] = uint32_t(result.nbytes >> 32);
  if (result.params[0] | result.params[1]) __builtin_memcpy(header + 4, result.params, 16);
  if (header[1] >> 8 & 1) header[18] = result.checksum;
  uint32_t sum = 0;
  for (uint32_t i = 0; i < 19; i++) sum += checksum_word(header[i], i);
  header[19] = sum;
  for (uint32_t i = 0; i < header_nbytes / 4; i++) reinterpret_cast<uint32_t*>(job.dst)[i] = header[i];
}

}  // namespace cuda
}  // namespace CC_LEVEL
}  // namespace compcoll
