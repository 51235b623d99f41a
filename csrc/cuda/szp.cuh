// szp on the GPU: a warp takes a block, a lane a value, and a ballot makes a word of the payload. Sizes are
// found first, then summed up, then the blocks are written, or read, where they belong.
#pragma once
#include "../szp.h"
#include "real.cuh"
#include "scan.cuh"
#include "szp_range.cuh"

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

// Adding up has no order here, and a block of zeros has no bytes: scratch holds a number for each block,
// its size in bytes, and after szp_scan its place behind the widths.

template <class T>
struct SzpBits {
  using type = uint32_t;
};
template <>
struct SzpBits<F64> {
  using type = uint64_t;
};

// The bits of the largest number of the type that is not above d >= 0.
template <class T>
CC_HD typename SzpBits<T>::type floor_bits(double d) {
  using Bits = typename SzpBits<T>::type;
  if constexpr (sizeof(Bits) == 8) return as<uint64_t>(d);
  else {
    const float r = to_float(d);
    return as<uint32_t>(r) - (to_double(r) > d ? 1 : 0);
  }
}

CC_HD uint64_t szp_head(const Job& job) { return szp_widths_nbytes(szp_blocks(job.n)); }

template <class T>
CC_HD int szp_raw_nbytes(const Job& job, uint64_t b) {
  const uint64_t left = job.n - b * szp_block;
  return int((left < szp_block ? left : szp_block) * sizeof(typename T::Stored));
}

// One lane's part of a block.
template <class T>
struct SzpCoded {
  typename T::Stored bits;
  uint32_t code, first;  // `first`, of all lanes, is the code that may stand apart
  uint32_t width;

  // within: whether the integers can stand for the values.
  CC_HD void code_integers(const Job& job, uint64_t b, uint32_t q, bool within) {
    const uint32_t lane = lane_id(), below = __shfl_up_sync(full_warp, q, 1);
    const uint32_t plain = szp_zigzag<int32_t>(q), z = szp_zigzag<int32_t>(q - (lane ? below : 0));
    first = __shfl_sync(full_warp, z, 0);
    width = szp_raw;
    if (within) width = szp_width(first, warp_or(lane ? z : 0), warp_or(plain), szp_raw_nbytes<T>(job, b));
    code = width >= szp_plain ? plain : width >= szp_apart && lane == 0 ? 0 : z;
  }
};

template <class T>
struct SzpLane : SzpCoded<T> {
  // job.params: the bits of the tolerance and of the step.
  CC_HD SzpLane(const Job& job, uint64_t b) {
    using Bits = typename SzpBits<T>::type;
    const double tolerance = as<double>(job.params[0]), step = as<double>(job.params[1]), inverse = 1 / step;
    const uint64_t i = b * szp_block + lane_id();
    this->bits = reinterpret_cast<const typename T::Stored*>(job.src)[i < job.n ? i : job.n - 1];
    const auto x = T::value(this->bits);
    const uint32_t q = uint32_t(szp_quantise<double, uint64_t>(T::widen(x), inverse));
    const auto error = as<Bits>(add(x, -T::round(double(int32_t(q)) * step))) & Bits(~Bits(0) >> 1);
    this->code_integers(job, b, q, !__ballot_sync(full_warp, error > floor_bits<T>(tolerance)));
  }
};

template <class T>
CC_HD void szp_put_width(const Job& job, uint64_t b, const SzpCoded<T>& block) {
  if (lane_id()) return;
  job.dst[b] = uint8_t(block.width);
  job.scratch[b] = uint32_t(szp_nbytes(block.width, szp_raw_nbytes<T>(job, b)));
}

template <class T>
CC_HD void szp_measure(const Job& given) {
  const Job job = szp_settled(given);
  const uint64_t blocks = szp_blocks(job.n), head = szp_head(job);
  for (uint64_t b = warp_id(); b < blocks; b += warp_count())
    szp_put_width(job, b, SzpLane<T>(job, b));
  for (uint64_t i = blocks + thread_id(); i < head; i += thread_count()) job.dst[i] = 0;
}

CC_HD void szp_scan(const Job& job) { scan_sizes(job, szp_blocks(job.n)); }

// A value's own bits, at a multiple of 4 bytes only.
template <class Stored>
CC_HD void store_raw(uint8_t* p, Stored bits) {
  if constexpr (sizeof(Stored) == 8) {
    reinterpret_cast<uint32_t*>(p)[0] = uint32_t(bits);
    reinterpret_cast<uint32_t*>(p)[1] = uint32_t(bits >> 32);
  } else {
    *reinterpret_cast<Stored*>(p) = bits;
  }
}
template <class Stored>
CC_HD Stored load_raw(const uint8_t* p) {
  if constexpr (sizeof(Stored) == 8) {
    auto words = reinterpret_cast<const uint32_t*>(p);
    return words[0] | Stored(words[1]) << 32;
  } else {
    return *reinterpret_cast<const Stored*>(p);
  }
}

// Writes a block to its place.
template <class T>
CC_HD void szp_put(const Job& job, uint64_t b, const SzpCoded<T>& block) {
  const uint32_t lane = lane_id();
  uint8_t* dst = job.dst + szp_head(job) + job.scratch[b];
  if (block.width == szp_raw) {
    if (b * szp_block + lane < job.n) store_raw(dst + lane * sizeof block.bits, block.bits);
    return;
  }
  auto words = reinterpret_cast<uint32_t*>(dst);
  const bool apart = block.width / szp_apart == 1;
  if (apart && lane == 0) words[0] = block.first;
  const uint32_t planes = block.width % szp_apart;
  uint32_t own = 0;
  for (uint32_t k = 0; k < planes; k++) {
    const uint32_t word = __ballot_sync(full_warp, block.code >> k & 1);
    own = lane == k ? word : own;
  }
  if (lane < planes) words[apart + lane] = own;
}

template <class T>
CC_HD void szp_write(const Job& given) {
  const Job job = szp_settled(given);
  if (szp_head(job) + job.result->extent[0] > job.nbytes) return;
  const uint64_t blocks = szp_blocks(job.n);
  for (uint64_t b = warp_id(); b < blocks; b += warp_count()) szp_put(job, b, SzpLane<T>(job, b));
}

CC_HD void szp_finish(const Job& job) {
  if (thread_id()) return;
  Result& result = *job.result;
  if (result.nbytes < 0) return;
  const uint64_t nbytes = szp_head(job) + result.extent[0];
  result.nbytes = nbytes > job.nbytes ? int64_t(TOO_LARGE) : int64_t(nbytes);
  if (job.params[1]) return;  // szp_settle
  result.bound = as<double>(job.params[0]);
  result.params[0] = as<uint64_t>(szp_steps * result.bound);
}

// The sizes that the widths of a payload say.
template <class T>
CC_HD void szp_sizes(const Job& job) {
  const uint64_t blocks = szp_blocks(job.n);
  for (uint64_t b = thread_id(); b < blocks; b += thread_count()) {
    const int nbytes = szp_nbytes(job.src[b], szp_raw_nbytes<T>(job, b));
    if (nbytes < 0) atomicOr(&job.result->bad, 1u);
    job.scratch[b] = nbytes < 0 ? 0 : uint32_t(nbytes);
  }
}

// One lane's integer of a block that is not stored as it was.
CC_HD uint32_t szp_integer(const uint8_t* src, uint32_t width) {
  auto words = reinterpret_cast<const uint32_t*>(src);
  const uint32_t lane = lane_id(), planes = width % szp_apart;
  const bool apart = width / szp_apart == 1;
  const uint32_t own = lane < planes ? words[apart + lane] : 0;
  uint32_t code = apart && lane == 0 ? words[0] : 0;
  for (uint32_t k = 0; k < planes; k++) code |= (__shfl_sync(full_warp, own, k) >> lane & 1) << k;
  uint32_t q = szp_unzigzag(code);
  if (width < szp_plain)
    for (uint32_t s = 1; s < 32; s *= 2) {
      const uint32_t other = __shfl_up_sync(full_warp, q, s);
      q += lane >= s ? other : 0;
    }
  return q;
}

// job.params: the bits of the step.
template <class T, bool adding>
CC_HD void szp_decode(const Job& job) {
  const double step = as<double>(job.params[0]);
  const uint64_t blocks = szp_blocks(job.n), head = szp_head(job);
  if (head + job.result->extent[0] != job.nbytes || !(step >= szp_bound_min && step <= 2 * szp_bound_max)) {
    if (thread_id() == 0) atomicOr(&job.result->bad, 2u);
    return;
  }
  const uint32_t lane = lane_id();
  for (uint64_t b = warp_id(); b < blocks; b += warp_count()) {
    const uint32_t width = job.src[b];
    const uint64_t i = b * szp_block + lane;
    const uint8_t* src = job.src + head + job.scratch[b];
    if (szp_nbytes(width, 0) < 0) continue;
    if (width == szp_raw) {
      if (i < job.n) {
        const auto bits = load_raw<typename T::Stored>(src + lane * sizeof(typename T::Stored));
        if constexpr (adding) deliver<T, true>(job.dst, i, T::value(bits));
        else reinterpret_cast<typename T::Stored*>(job.dst)[i] = bits;
      }
      continue;
    }
    const uint32_t q = szp_integer(src, width);
    if (i < job.n) deliver<T, adding>(job.dst, i, T::round(double(int32_t(q)) * step));
  }
}

}  // namespace cuda
}  // namespace CC_LEVEL
}  // namespace compcoll
