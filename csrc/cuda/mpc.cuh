// MPC on the GPU, in one pass: a warp takes a block of 1024 words, 32 words at a time, and the blocks of all
// warps in a block of threads are one tile of the look-back.
#pragma once
#include "../mpc.h"
#include "checksum.cuh"
#include "real.cuh"
#include "scan.cuh"
#include "warp.cuh"

namespace compcoll {
namespace CC_LEVEL {
namespace cuda {

// job.n: bytes of the array; job.params[0]: distance of the predicting words; scratch: see scan.cuh.
template <class W>
struct MpcLayout {
  static constexpr uint32_t width = sizeof(W), bits = 8 * width, rows = bits / 32;
  static constexpr uint32_t max_groups = mpc::block_words / bits;
  uint64_t words, blocks, tiles, fixed;  // `fixed`: bytes before the nonzero words
  uint32_t dim;

  CC_HD explicit MpcLayout(const Job& job) {
    words = (job.n + width - 1) / width;
    blocks = (words + mpc::block_words - 1) / mpc::block_words;
    tiles = (blocks + CC_WARPS - 1) / CC_WARPS;
    fixed = mpc::header_nbytes + (words + bits - 1) / bits * width;
    dim = uint32_t(job.params[0]);
  }
  // Number of groups of `bits` words in which a block has data.
  CC_HD uint32_t groups(uint64_t block) const {
    const uint64_t before = block * max_groups, all = (words + bits - 1) / bits;
    return all <= before ? 0 : all - before < max_groups ? uint32_t(all - before) : max_groups;
  }
};

template <class W>
struct MpcTile {
  W words[CC_WARPS][mpc::block_words + 1];  // the nonzero words of each warp's block
  TilePass pass;
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

// Transposes a matrix of which each lane has a row, or two rows that are 32 apart.
CC_HD void mpc_transpose(const Transposer& transpose, uint32_t* word) { word[0] = transpose(word[0]); }
CC_HD void mpc_transpose(const Transposer& transpose, uint64_t* word) {
  mpc::exchange<uint64_t>(word[0], word[1], 32);
  for (int r = 0; r < 2; r++)
    word[r] = transpose(uint32_t(word[r])) | uint64_t(transpose(uint32_t(word[r] >> 32))) << 32;
}

CC_HD uint32_t ones(uint32_t v) { return uint32_t(__popc(v)); }
CC_HD uint32_t ones(uint64_t v) { return uint32_t(__popcll(v)); }

// Number of bits of a map below this lane's bit in row r; below: mask of the lower bits in 32.
CC_HD uint32_t count_below(uint32_t map, uint32_t, uint32_t below) { return ones(map & below); }
CC_HD uint32_t count_below(uint64_t map, uint32_t r, uint32_t below) {
  return r ? ones(uint32_t(map)) + ones(uint32_t(map >> 32) & below) : ones(uint32_t(map) & below);
}

// Compacts a block's nonzero words, and gives lane g the map of group g. Returns the number of words. whole:
// the block has all of its words, each aligned in memory.
template <class W, bool whole>
CC_HD uint32_t mpc_compact(const Job& job, const MpcLayout<W>& layout, uint64_t b, const Transposer& transpose,
                           W* out, W& own_map) {
  using M = MpcLayout<W>;
  constexpr uint32_t ahead = 8 / M::rows;  // groups whose loads are in flight together
  const uint32_t lane = lane_id(), groups = whole ? M::max_groups : layout.groups(b);
  const uint32_t below = (1u << lane) - 1;
  const int from_lane = int(lane - layout.dim);
  const bool ahead_of_last = lane + layout.dim < 32;
  auto src = reinterpret_cast<const W*>(job.src) + (whole ? b * mpc::block_words + lane : 0);
  W before = 0, last = 0;  // of the previous row: each lane's word; the last word after stage 2
  uint32_t count = 0;
#pragma unroll 1
  for (uint32_t first = 0; first < groups; first += ahead) {
    W in[ahead][M::rows];
    const uint64_t i = b * mpc::block_words + first * M::bits + lane;
    for (uint32_t k = 0; k < ahead; k++)
      for (uint32_t r = 0; r < M::rows; r++)
        in[k][r] = whole ? src[(first + k) * M::bits + 32 * r] : mpc_load<W>(job, i + k * M::bits + 32 * r);
#pragma unroll
    for (uint32_t k = 0; k < ahead; k++) {
      if (!whole && first + k >= groups) break;
      W word[M::rows], map = 0;
      for (uint32_t r = 0; r < M::rows; r++) {
        const W given = ahead_of_last ? in[k][r] : before;
        const W from = __shfl_sync(full_warp, given, from_lane);
        word[r] = in[k][r] - (whole || i + k * M::bits + 32 * r < layout.words ? from : 0);
        before = in[k][r];
      }
      mpc_transpose(transpose, word);
      for (uint32_t r = 0; r < M::rows; r++) {
        const W under = __shfl_up_sync(full_warp, word[r], 1), top = __shfl_sync(full_warp, word[r], 31);
        word[r] -= lane ? under : last;
        last = top;
        map |= W(__ballot_sync(full_warp, word[r] != 0)) << (32 * r);
      }
      for (uint32_t r = 0; r < M::rows; r++)
        if (word[r]) out[count + count_below(map, r, below)] = word[r];
      count += ones(map);
      own_map = lane == first + k ? map : own_map;
    }
  }
  if (!whole && groups && groups < M::max_groups && last) {  // the word that has no bit
    if (lane == 0) out[count] = 0 - last;
    count++;
  }
  return count;
}

template <class W>
CC_HD bool mpc_is_whole(const uint8_t* array, uint64_t nbytes, uint64_t block) {
  return aligned(array, sizeof(W)) && (block + 1) * mpc::block_words * sizeof(W) <= nbytes;
}

template <class W>
CC_HD void mpc_encode(const Job& job) {
  using M = MpcLayout<W>;
  CC_SHARED(MpcTile<W>, tile);
  const M layout(job);
  const uint32_t lane = lane_id(), warp = threadIdx.x / 32;
  if (layout.tiles && layout.fixed > job.nbytes) {
    if (thread_id() == 0) job.result->nbytes = TOO_LARGE;
    return complete(job);
  }
  auto maps = reinterpret_cast<W*>(job.dst + mpc::header_nbytes);
  const Transposer transpose;
  Checksum sum(job);
  for (uint64_t t; (t = draw_tile(job, tile.pass.drawn)) < layout.tiles;) {
    const uint64_t b = t * CC_WARPS + warp, at = b * M::max_groups + lane;
    W map = 0;
    const uint32_t count = mpc_is_whole<W>(job.src, job.n, b)
                               ? mpc_compact<W, true>(job, layout, b, transpose, tile.words[warp], map)
                               : mpc_compact<W, false>(job, layout, b, transpose, tile.words[warp], map);
    if (lane < layout.groups(b)) maps[at] = map, sum.add(map, at + mpc::header_nbytes / M::width);
    const uint64_t begin = sum_before_warp(tile_words(job), t, count, tile.pass.sums);
    const uint64_t end = layout.fixed + (begin + count) * M::width;
    if (end <= job.nbytes) {
      auto out = reinterpret_cast<W*>(job.dst + layout.fixed) + begin;
      for (uint32_t i = lane; i < count; i += 32) {
        const W word = tile.words[warp][i];
        out[i] = word;
        sum.add(word, layout.fixed / M::width + begin + i);
      }
    }
    if (t == layout.tiles - 1 && threadIdx.x == CC_CTA - 1) {
      const uint64_t header = mpc::header(W(), layout.words, layout.dim);
      *reinterpret_cast<uint64_t*>(job.dst) = header;
      sum.add(header, 0);
      job.result->nbytes = end > job.nbytes ? int64_t(TOO_LARGE) : int64_t(end);
    }
  }
  sum.note(job);
  complete(job);
}

// Sums of 32 adjacent words with the words before them, `dim` apart; `before` is the result for the 32 words
// before.
template <class W>
CC_HD W mpc_integrate(W v, W before, uint32_t dim) {
  const uint32_t lane = lane_id();
  for (uint32_t s = dim; s < 32; s *= 2) v = add_from_below(v, s);
  return v + __shfl_sync(full_warp, before, int(32 - dim + lane % dim));
}

// Integers in place of a float type of real.cuh; sums wrap.
template <class S>
struct MpcInt {
  using Stored = S;
  using Sum = S;
  static CC_HD S value(S v) { return v; }
};

// Stores word i of the decoded array, at any address.
struct MpcStore {
  template <bool whole, class W>
  static CC_HD void put(const Job& job, uint64_t i, W word) {
    if constexpr (whole) {
      reinterpret_cast<W*>(job.dst)[i] = word;
      return;
    }
    const uint64_t at = i * sizeof(W);
    if (aligned(job.dst, sizeof(W)) && at + sizeof(W) <= job.n) reinterpret_cast<W*>(job.dst)[i] = word;
    else
      for (uint32_t k = 0; k < sizeof(W) && at + k < job.n; k++) job.dst[at + k] = uint8_t(word >> (8 * k));
  }
};

// Adds the elements of word i to an accumulator.
template <class T>
struct MpcAdd {
  template <bool whole, class W>
  static CC_HD void put(const Job& job, uint64_t i, W word) {
    using S = typename T::Stored;
    constexpr uint32_t n = sizeof(W) / sizeof(S);
    for (uint32_t k = 0; k < n; k++)
      if (whole || (i * n + k + 1) * sizeof(S) <= job.n)
        deliver<T, true>(job.dst, i * n + k, T::value(S(word >> (8 * sizeof(S) * k))));
  }
};

// ADD(suffix of a kernel's name, word, element) for each type that MpcAdd supports.
#define CC_MPC_ELEMENTS(ADD)           \
  ADD(i8, uint32_t, MpcInt<uint8_t>)   \
  ADD(i16, uint32_t, MpcInt<uint16_t>) \
  ADD(i32, uint32_t, MpcInt<uint32_t>) \
  ADD(i64, uint64_t, MpcInt<uint64_t>) \
  ADD(f16, uint32_t, F16)              \
  ADD(bf16, uint32_t, BF16)            \
  ADD(f32, uint32_t, F32)              \
  ADD(f64, uint64_t, F64)

// Decodes the words of block b, which begin at `in`; lane g has the map of group g, and the start of its
// words. whole: the block has all of its words, each aligned in memory.
template <class W, class Sink, bool whole>
CC_HD void mpc_expand(const Job& job, const MpcLayout<W>& layout, uint64_t b, const Transposer& transpose,
                      const W* in, W own_map, uint32_t own_begin) {
  using M = MpcLayout<W>;
  constexpr uint32_t ahead = 4 / M::rows;  // groups whose loads are in flight together
  const uint32_t lane = lane_id(), groups = whole ? M::max_groups : layout.groups(b), below = (1u << lane) - 1;
  W last = 0, sum = 0;
#pragma unroll 1
  for (uint32_t first = 0; first < groups; first += ahead) {
    W word[ahead][M::rows];
#pragma unroll
    for (uint32_t k = 0; k < ahead; k++) {  // missing groups have no words
      const W map = __shfl_sync(full_warp, own_map, int(first + k));
      const uint32_t begin = __shfl_sync(full_warp, own_begin, int(first + k));
      for (uint32_t r = 0; r < M::rows; r++)
        word[k][r] = map >> (32 * r + lane) & 1 ? in[begin + count_below(map, r, below)] : 0;
    }
#pragma unroll
    for (uint32_t k = 0; k < ahead; k++) {
      if (!whole && first + k >= groups) break;
      for (uint32_t r = 0; r < M::rows; r++) last = word[k][r] = mpc_integrate<W>(word[k][r], last, 1);
      mpc_transpose(transpose, word[k]);
      for (uint32_t r = 0; r < M::rows; r++) {
        sum = mpc_integrate<W>(word[k][r], sum, layout.dim);
        Sink::template put<whole>(job, b * mpc::block_words + (first + k) * M::bits + 32 * r + lane, sum);
      }
    }
  }
}

template <class W, class Sink>
CC_HD void mpc_decode(const Job& job) {
  using M = MpcLayout<W>;
  CC_SHARED(TilePass, tile);
  const M layout(job);
  const uint32_t lane = lane_id(), warp = threadIdx.x / 32;
  if (*reinterpret_cast<const uint64_t*>(job.src) != mpc::header(W(), layout.words, layout.dim)) {
    if (thread_id() == 0) atomicOr(&job.result->bad, 1u);
    return;
  }
  auto maps = reinterpret_cast<const W*>(job.src + mpc::header_nbytes);
  const Transposer transpose;
  for (uint64_t t; (t = draw_tile(job, tile.drawn)) < layout.tiles;) {
    const uint64_t b = t * CC_WARPS + warp;
    const W map = lane < layout.groups(b) ? maps[b * M::max_groups + lane] : 0;
    const uint32_t count = ones(map), upto = sum_upto(count);
    const uint32_t all = __shfl_sync(full_warp, upto, 31);
    const uint64_t begin = sum_before_warp(tile_words(job), t, all, tile.sums);
    const uint64_t end = layout.fixed + (begin + all) * M::width;
    bool sound = end <= job.nbytes;
    if (sound) {
      auto in = reinterpret_cast<const W*>(job.src + layout.fixed) + begin;
      if (mpc_is_whole<W>(job.dst, job.n, b))
        mpc_expand<W, Sink, true>(job, layout, b, transpose, in, map, upto - count);
      else
        mpc_expand<W, Sink, false>(job, layout, b, transpose, in, map, upto - count);
    }
    if (t == layout.tiles - 1 && warp == CC_WARPS - 1) {  // a word without a bit may follow
      const uint64_t tail = layout.words % mpc::block_words;
      const bool unmapped = tail && tail <= mpc::block_words - M::bits;
      sound = end == job.nbytes || (unmapped && end + M::width == job.nbytes);
    }
    if (!sound && lane == 0) atomicOr(&job.result->bad, 1u);
  }
}

}  // namespace cuda
}  // namespace CC_LEVEL
}  // namespace compcoll
