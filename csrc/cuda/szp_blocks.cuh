// Blocks of szp on the GPU: a warp codes a block; a lane has a value, or a word of the payload.
#pragma once
#include "../szp.h"
#include "checksum.cuh"
#include "scan.cuh"
#include "szp_range.cuh"
#include "warp.cuh"

namespace compcoll {
namespace CC_LEVEL {
namespace cuda {

// Number of blocks of a warp in a tile, one per lane, and of all its warps.
constexpr uint32_t szp_each = 32, szp_tile_blocks = szp_each * CC_WARPS;

CC_HD uint64_t szp_tiles(uint64_t n) { return (szp_blocks(n) + szp_tile_blocks - 1) / szp_tile_blocks; }
CC_HD uint64_t szp_first(uint64_t tile) { return tile * szp_tile_blocks + threadIdx.x / 32 * szp_each; }
CC_HD uint64_t szp_head(const Job& job) { return szp_widths_nbytes(szp_blocks(job.n)); }
CC_HD bool szp_valid(double step) { return step >= szp_bound_min && step <= 2 * szp_bound_max; }

// Number of a warp's blocks that exist, starting at `first`.
CC_HD uint32_t szp_count(uint64_t n, uint64_t first) {
  const uint64_t blocks = szp_blocks(n), left = blocks > first ? blocks - first : 0;
  return left < szp_each ? uint32_t(left) : szp_each;
}

template <class T>
CC_HD uint32_t szp_raw_nbytes(uint64_t n, uint64_t b) {
  const uint64_t left = n - b * szp_block;
  return uint32_t((left < szp_block ? left : szp_block) * sizeof(typename T::Stored));
}

// A block's description for all lanes, in one word for shuffles: its planes (bits 0-5), whether its values
// are unchanged (6) or its integers are coded (7), and the word at which its planes begin, after that of a
// first difference (8-), counted from the warp's first word.
struct SzpPlace {
  static constexpr uint32_t raw = 64, plain = 128;
  uint32_t bits;

  CC_HD static bool apart(uint32_t width) { return width / szp_apart == 1; }
  CC_HD static SzpPlace of(uint32_t width, uint32_t begin) {
    const uint32_t at = begin / 4 + apart(width);
    return {at << 8 | (width == szp_raw ? raw : (width >= szp_plain ? plain : 0) | width % szp_apart)};
  }
  CC_HD SzpPlace from(uint32_t lane) const { return {__shfl_sync(full_warp, bits, int(lane))}; }
  CC_HD uint32_t planes() const { return bits & 63; }
  CC_HD uint32_t word() const { return bits >> 8; }
};

// Stores a value's bits at an address that is only a multiple of 4 bytes.
template <class Stored>
CC_HD void store_raw(uint32_t* p, uint32_t i, Stored bits) {
  if constexpr (sizeof(Stored) == 8) p[2 * i] = uint32_t(bits), p[2 * i + 1] = uint32_t(bits >> 32);
  else reinterpret_cast<Stored*>(p)[i] = bits;
}
template <class Stored>
CC_HD Stored load_raw(const uint32_t* p, uint32_t i) {
  if constexpr (sizeof(Stored) == 8) return p[2 * i] | Stored(p[2 * i + 1]) << 32;
  else return reinterpret_cast<const Stored*>(p)[i];
}

// Writes zeros between the widths and the first block, and the payload's size, which the last tile knows.
CC_HD void szp_end(const Job& job, uint64_t end) {
  for (uint64_t i = szp_blocks(job.n); i < szp_head(job); i++) job.dst[i] = 0;
  job.result->nbytes = end > job.nbytes ? int64_t(TOO_LARGE) : int64_t(end);
}

template <class T>
struct SzpShared {
  uint32_t words[CC_WARPS][szp_each * szp_block * sizeof(typename T::Stored) / 4];
  TilePass pass;
};

// The blocks of one warp in a tile, composed by an encoder in shared memory. All lanes know the number of
// words, and lane k the width of block k.
template <class T>
struct SzpMade {
  static constexpr uint32_t full = szp_block * sizeof(typename T::Stored) / 4;
  uint32_t* words;
  uint32_t size = 0, width = 0;
  uint32_t count, last;  // number of blocks; words of the last block when unchanged

  CC_HD SzpMade(uint32_t* words, const Job& job, uint64_t first, uint32_t count)
      : words(words), count(count), last((szp_raw_nbytes<T>(job.n, first + count - 1) + 3) / 4) {}

  // Chooses the widths of blocks `group` to `group + n - 1`, each known to one lane afterwards, and appends
  // the blocks. q: their integers, whose zigzag codes are `plain`. within(all, k): true if the integers,
  // whose "or" is `all`, can represent the values of block k; otherwise store(words, k) stores these values.
  // inner: none of the blocks is the array's last.
  template <uint32_t n, bool inner, class Within, class Store>
  CC_HD void code(const Transposer& transpose, uint32_t group, const uint32_t* q, const uint32_t* plain,
                  Within within, Store store) {
    const uint32_t lane = lane_id();
    uint32_t z[n], first = 0, others = 0, all = 0;
    for (uint32_t k = 0; k < n; k++) {
      const uint32_t below = __shfl_up_sync(full_warp, q[k], 1);
      z[k] = szp_zigzag<int32_t>(q[k] - (lane ? below : 0));
      const uint32_t head = __shfl_sync(full_warp, z[k], 0);
      const uint32_t rest = warp_or(lane ? z[k] : 0), integers = warp_or(plain[k]);
      if (lane == group + k) first = head, others = rest, all = integers;
    }
    const uint32_t unchanged = inner || lane + 1 != count ? full : last;
    const uint32_t best = szp_shortest(first, others, all);
    uint32_t chosen = best < unchanged << 8 ? best & 255 : szp_raw;
    chosen = within(all) ? chosen : szp_raw;
    width = lane - group < n && lane < count ? chosen : width;
#pragma unroll
    for (uint32_t k = 0; k < n; k++) {
      if (!inner && group + k >= count) break;
      append(transpose, __shfl_sync(full_warp, width, int(group + k)), z[k], plain[k],
             inner || group + k + 1 != count ? full : last, [&](uint32_t* out) { store(out, k); });
    }
  }

  template <class Store>
  CC_HD void append(const Transposer& transpose, uint32_t chosen, uint32_t z, uint32_t plain, uint32_t unchanged,
                    Store store) {
    const uint32_t lane = lane_id();
    uint32_t* out = words + size;
    if (chosen == szp_raw) {
      store(out);
      size += unchanged;
      return;
    }
    const bool apart = chosen / szp_apart == 1;
    const uint32_t planes = chosen % szp_apart;
    const uint32_t row = transpose(chosen >= szp_plain ? plain : apart && !lane ? 0 : z);
    if (apart && lane == 0) out[0] = z;
    if (lane < planes) out[apart + lane] = row;
    size += planes + apart;
  }

  // Writes the widths, and the payload after those of all blocks before. `sums` are in `scan`.
  CC_HD void write(const Job& job, uint64_t tile, uint64_t* scan, TileSums& sums, Checksum& sum) const {
    const uint32_t lane = lane_id();
    const uint64_t b = szp_first(tile) + lane, blocks = szp_blocks(job.n);
    if (lane < count) job.dst[b] = uint8_t(width);
    sum_widths(b, sum);
    const uint64_t begin = szp_head(job) + 4 * sum_before_warp(scan, tile, size, sums);
    const uint32_t rest = b == blocks - 1 && width == szp_raw ? szp_raw_nbytes<T>(job.n, b) % 4 : 0;
    // The last word may be partial; its excess bytes fall into the slack.
    if (begin + 4 * size <= job.nbytes + 3) {
      auto out = reinterpret_cast<uint32_t*>(job.dst + begin);
      for (uint32_t i = lane; i < size; i += 32) {
        out[i] = words[i];
        sum.add(words[i], begin / 4 + i);
      }
      if (rest) {  // excludes the bytes after the last one
        const uint32_t last = words[size - 1], at = uint32_t(begin / 4) + size - 1;
        sum.sum += sum.wanted ? checksum_word(last & ((1u << 8 * rest) - 1), at) - checksum_word(last, at) : 0;
      }
    }
    if (b == blocks - 1) szp_end(job, begin + 4 * size - (rest ? 4 - rest : 0));
  }
  CC_HD void sum_widths(uint64_t b, Checksum& sum) const {
    uint32_t word = (lane_id() < count ? width : 0) << 8 * (lane_id() % 4);
    word |= __shfl_xor_sync(full_warp, word, 1);
    word |= __shfl_xor_sync(full_warp, word, 2);
    if (lane_id() % 4 == 0 && lane_id() < count) sum.add(word, b / 4);
  }
};

// Blocks of one warp in a tile of a payload. Lane k knows the width of block k and its separate first code.
struct SzpRead {
  uint32_t width = 0, nbytes = 0, first = 0;
  SzpPlace own = {0};
  const uint32_t* words;  // start of the warp's blocks

  // Reads widths. An invalid one is treated as a block of zeros, and marks the job as bad.
  template <class T>
  CC_HD void sizes(const Job& job, uint64_t tile) {
    const uint64_t b = szp_first(tile) + lane_id();
    if (b >= szp_blocks(job.n)) return;
    width = job.src[b];
    const int size = szp_nbytes(width, int(szp_raw_nbytes<T>(job.n, b)));
    if (size < 0) atomicOr(&job.result->bad, 1u);
    else nbytes = uint32_t(size);
    width = size < 0 ? 0 : width;
  }

  // begin: offset of the warp's blocks after the widths; before: offset of this lane's block among them. True
  // if the blocks are within the payload and end where it ends; otherwise marks the job as bad.
  CC_HD bool place(const Job& job, uint64_t tile, uint64_t begin, uint32_t before) {
    const uint64_t b = szp_first(tile) + lane_id(), blocks = szp_blocks(job.n);
    const uint64_t end = szp_head(job) + begin + before + nbytes;
    const bool wrong = b < blocks && (b + 1 < blocks ? end > job.nbytes : end != job.nbytes);
    if (__ballot_sync(full_warp, wrong)) {
      if (lane_id() == 0) atomicOr(&job.result->bad, 1u);
      return false;
    }
    words = reinterpret_cast<const uint32_t*>(job.src + szp_head(job) + begin);
    own = SzpPlace::of(width, before);
    if (SzpPlace::apart(width)) first = words[own.word() - 1];
    return true;
  }

  CC_HD uint32_t load(SzpPlace at) const {
    return lane_id() < at.planes() ? words[at.word() + lane_id()] : 0;
  }

  // This lane's integer of block k, from the `word` that `load` returned; 0 if it has none.
  CC_HD uint32_t integer(const Transposer& transpose, SzpPlace at, uint32_t k, uint32_t word) const {
    const uint32_t apart = __shfl_sync(full_warp, first, int(k));
    const uint32_t q = szp_unzigzag(transpose(word) | (lane_id() ? 0 : apart));
    const uint32_t sum = sum_upto(q);
    return at.bits & SzpPlace::plain ? q : sum;
  }
};

}  // namespace cuda
}  // namespace CC_LEVEL
}  // namespace compcoll
