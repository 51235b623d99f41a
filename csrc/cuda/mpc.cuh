// MPC on the GPU: a warp takes a block of 1024 words, 32 words at a time. A ballot transposes bits, and tells
// which words are not zero. Sizes are found first, then summed up, then the blocks written or read.
#pragma once
#include "../mpc.h"
#include "scan.cuh"

namespace compcoll {
namespace CC_LEVEL {
namespace cuda {

// job.n: bytes of the array; job.params[0]: the distance of the words that predict; scratch: see scan.cuh.
template <class W>
struct MpcLayout {
  static constexpr uint32_t width = sizeof(W), bits = 8 * width, rows = bits / 32;
  uint64_t words, blocks, maps, fixed;  // `fixed`: bytes in front of the words that are not zero
  uint32_t dim;

  CC_HD explicit MpcLayout(const Job& job) {
    words = (job.n + width - 1) / width;
    blocks = (words + mpc::block_words - 1) / mpc::block_words;
    maps = (words + bits - 1) / bits;
    fixed = mpc::header_nbytes + maps * width;
    dim = uint32_t(job.params[0]);
  }
  // Groups of `bits` words that a block has data in.
  CC_HD uint32_t groups(uint64_t block) const {
    const uint64_t left = maps - block * (mpc::block_words / bits);
    return left < mpc::block_words / bits ? uint32_t(left) : mpc::block_words / bits;
  }
};

// Word i of the array at any address, zero-padded.
template <class W>
CC_HD W mpc_load(const Job& job, uint64_t i) {
  const uint64_t at = i * sizeof(W);
  if (at >= job.n) return 0;
  if (aligned(job.src, sizeof(W)) && at + sizeof(W) <= job.n) return reinterpret_cast<const W*>(job.src)[i];
  W word = 0;
  for (uint32_t k = 0; k < sizeof(W) && at + k < job.n; k++) word |= W(job.src[at + k]) << (8 * k);
  return word;
}

template <class W>
CC_HD W ballot_word(const bool* predicate) {  // of W's bits lanes, 32 at a time
  W word = 0;
  for (uint32_t r = 0; r < MpcLayout<W>::rows; r++)
    word |= W(__ballot_sync(full_warp, predicate[r])) << (32 * r);
  return word;
}

// Stages 1 to 3 of group g: word[r] is the one of row r in this lane. `last` is the one before, and becomes
// the last one, in all lanes.
template <class W>
CC_HD void mpc_forward(const Job& job, const MpcLayout<W>& layout, uint64_t b, uint32_t g, W& last, W* word) {
  using M = MpcLayout<W>;
  const uint32_t lane = lane_id();
  W in[M::rows], plane[M::rows];
  for (uint32_t r = 0; r < M::rows; r++) {
    const uint32_t j = g * M::bits + 32 * r + lane;
    const uint64_t i = b * mpc::block_words + j;
    in[r] =
        mpc_load<W>(job, i) - (j >= layout.dim && i < layout.words ? mpc_load<W>(job, i - layout.dim) : 0);
    plane[r] = 0;
  }
#pragma unroll 4  // all of them would not fit into the registers
  for (uint32_t k = 0; k < M::bits; k++) {
    bool set[M::rows];
    for (uint32_t r = 0; r < M::rows; r++) set[r] = in[r] >> k & 1;
    const W own = ballot_word<W>(set);
    for (uint32_t r = 0; r < M::rows; r++) plane[r] = k == 32 * r + lane ? own : plane[r];
  }
  for (uint32_t r = 0; r < M::rows; r++) {
    const W below = __shfl_up_sync(full_warp, plane[r], 1);
    word[r] = plane[r] - (lane ? below : last);
    last = __shfl_sync(full_warp, plane[r], 31);
  }
}

// Calls put(map, word) for each group, and returns the word that no bit stands for.
template <class W, class Put>
CC_HD W mpc_groups(const Job& job, const MpcLayout<W>& layout, uint64_t b, Put put) {
  using M = MpcLayout<W>;
  W last = 0, word[M::rows];
  const uint32_t groups = layout.groups(b);
  for (uint32_t g = 0; g < groups; g++) {
    mpc_forward(job, layout, b, g, last, word);
    bool some[M::rows];
    for (uint32_t r = 0; r < M::rows; r++) some[r] = word[r] != 0;
    put(g, ballot_word<W>(some), word);
  }
  return groups < mpc::block_words / M::bits ? W(0 - last) : W(0);
}

// How many bits below a lane's place in row r of a map are set, and in all of it.
template <class W>
CC_HD uint32_t count_below(W map, uint32_t r) {
  return uint32_t(__popcll(map & ((W(1) << (32 * r + lane_id())) - 1)));
}

template <class W>
CC_HD void mpc_measure(const Job& job) {
  using M = MpcLayout<W>;
  const M layout(job);
  if (layout.fixed > job.nbytes) return;
  if (thread_id() == 0) {
    const uint64_t header = mpc::header(W(), layout.words, layout.dim);
    reinterpret_cast<uint64_t*>(job.dst)[0] = header;
  }
  auto maps = reinterpret_cast<W*>(job.dst + mpc::header_nbytes);
  for (uint64_t b = warp_id(); b < layout.blocks; b += warp_count()) {
    uint32_t count = 0;
    const W unmapped = mpc_groups(job, layout, b, [&](uint32_t g, W map, const W*) {
      if (lane_id() == 0) maps[b * (mpc::block_words / M::bits) + g] = map;
      count += uint32_t(__popcll(map));
    });
    if (lane_id() == 0) job.scratch[b] = (count + (unmapped != 0)) * M::width;
  }
}

template <class W>
CC_HD void mpc_scan(const Job& job) {
  scan_sizes(job, MpcLayout<W>(job).blocks);
}

template <class W>
CC_HD void mpc_write(const Job& job) {
  using M = MpcLayout<W>;
  const M layout(job);
  if (layout.fixed + job.result->extent[0] > job.nbytes) return;
  for (uint64_t b = warp_id(); b < layout.blocks; b += warp_count()) {
    auto out = reinterpret_cast<W*>(job.dst + layout.fixed + job.scratch[b]);
    const W unmapped = mpc_groups(job, layout, b, [&](uint32_t, W map, const W* word) {
      for (uint32_t r = 0; r < M::rows; r++)
        if (word[r]) out[count_below(map, r)] = word[r];
      out += __popcll(map);
    });
    if (lane_id() == 0 && unmapped) *out = unmapped;
  }
}

template <class W>
CC_HD void mpc_finish(const Job& job) {
  if (thread_id()) return;
  const uint64_t nbytes = MpcLayout<W>(job).fixed + job.result->extent[0];
  job.result->nbytes = nbytes > job.nbytes ? int64_t(TOO_LARGE) : int64_t(nbytes);
}

// What the bitmap of a payload says of the blocks' sizes.
template <class W>
CC_HD void mpc_sizes(const Job& job) {
  using M = MpcLayout<W>;
  const M layout(job);
  auto maps = reinterpret_cast<const W*>(job.src + mpc::header_nbytes);
  for (uint64_t b = thread_id(); b < layout.blocks; b += thread_count()) {
    uint32_t count = 0;
    for (uint32_t g = 0; g < layout.groups(b); g++)
      count += uint32_t(__popcll(maps[b * (mpc::block_words / M::bits) + g]));
    job.scratch[b] = count * M::width;
  }
}

// Sums over the words before, `dim` apart, of 32 words in a row; `before` is what this gave 32 words before.
template <class W>
CC_HD W mpc_integrate(W v, W before, uint32_t dim) {
  const uint32_t lane = lane_id();
  for (uint32_t s = dim; s < 32; s *= 2) {
    const W other = __shfl_up_sync(full_warp, v, s);
    v += lane >= s ? other : 0;
  }
  return v + __shfl_sync(full_warp, before, 32 - dim + lane % dim);
}

template <class W>
CC_HD void mpc_decode(const Job& job) {
  using M = MpcLayout<W>;
  const M layout(job);
  const uint64_t nbytes = layout.fixed + job.result->extent[0], tail = layout.words % mpc::block_words;
  const bool unmapped = tail && tail <= mpc::block_words - M::bits;
  const uint64_t header = mpc::header(W(), layout.words, layout.dim);
  if (reinterpret_cast<const uint64_t*>(job.src)[0] != header ||
      (nbytes != job.nbytes && !(unmapped && nbytes + M::width == job.nbytes))) {
    if (thread_id() == 0) atomicOr(&job.result->bad, 1u);
    return;
  }
  const uint32_t lane = lane_id();
  auto maps = reinterpret_cast<const W*>(job.src + mpc::header_nbytes);
  for (uint64_t b = warp_id(); b < layout.blocks; b += warp_count()) {
    auto in = reinterpret_cast<const W*>(job.src + layout.fixed + job.scratch[b]);
    W last = 0, sum = 0;
    for (uint32_t g = 0; g < layout.groups(b); g++) {
      const W map = maps[b * (mpc::block_words / M::bits) + g];
      W plane[M::rows], word[M::rows];
      for (uint32_t r = 0; r < M::rows; r++) {
        plane[r] = map >> (32 * r + lane) & 1 ? in[count_below(map, r)] : 0;
        plane[r] = mpc_integrate<W>(plane[r], last, 1);
        last = plane[r];
        word[r] = 0;
      }
      in += __popcll(map);
      for (uint32_t k = 0; k < M::bits; k++) {
        const W p = __shfl_sync(full_warp, plane[k / 32], int(k % 32));
        for (uint32_t r = 0; r < M::rows; r++) word[r] |= (p >> (32 * r + lane) & 1) << k;
      }
      for (uint32_t r = 0; r < M::rows; r++) {
        sum = mpc_integrate<W>(word[r], sum, layout.dim);
        const uint64_t at = (b * mpc::block_words + g * M::bits + 32 * r + lane) * M::width;
        if (aligned(job.dst, M::width) && at + M::width <= job.n) *reinterpret_cast<W*>(job.dst + at) = sum;
        else
          for (uint32_t k = 0; k < M::width && at + k < job.n; k++) job.dst[at + k] = uint8_t(sum >> (8 * k));
      }
    }
  }
}

}  // namespace cuda
}  // namespace CC_LEVEL
}  // namespace compcoll
