// float on the GPU: a block of threads handles a chunk, a thread 32 adjacent values of one plane at a time,
// as the bytes of 8 words. The chunk's planes are in shared memory. The payload has the position of each
// chunk, so decoding needs no look-back.
#pragma once
#include "../float.h"
#include "real.cuh"
#include "warp.cuh"

namespace compcoll {
namespace CC_LEVEL {
namespace cuda {

constexpr uint32_t float_cta = 256, float_warps = float_cta / 32;

template <uint32_t dtype>
struct FloatChunk {
  using F = floats::Format<dtype>;
  using Word = typename F::Word;
  static constexpr uint32_t planes = F::planes, width = sizeof(Word), values = floats::chunk_values<dtype>;
  static constexpr uint32_t header_nbytes = (2 * planes + 7) / 8 * 8;
  static constexpr uint32_t max_nbytes = header_nbytes + planes * values;

  uint32_t plane[width][values / 4];  // words of 4 values each, see `spot`
  floats::CodeHeader code;
  uint32_t at[floats::max_depth];  // bits of each stream used by values before this round
  uint32_t sums[float_warps];
};

// Position of word w of a plane: threads that each read 8 adjacent words access different banks.
CC_HD uint32_t spot(uint32_t w) { return w ^ (w >> 5 & 7); }

// The sum over the threads before this one, and over all. Called by all threads.
CC_HD uint32_t sum_before(uint32_t v, uint32_t* sums, uint32_t& all) {
  const uint32_t upto = sum_upto(v);
  __syncthreads();  // all have read the previous sums
  if (lane_id() == 31) sums[threadIdx.x / 32] = upto;
  __syncthreads();
  uint32_t before = upto - v;
  all = 0;
  for (uint32_t w = 0; w < float_warps; w++) {
    if (w < threadIdx.x / 32) before += sums[w];
    all += sums[w];
  }
  return before;
}

// Up to 32 bits starting at bit `at` of the bytes before `end`; 0 after them.
CC_HD uint32_t float_bits(const uint8_t* bytes, const uint8_t* end, uint32_t at) {
  const uint8_t* p = bytes + at / 8;
  uint64_t v = 0;
  for (uint32_t k = 0; k < 5; k++) v |= uint64_t(p + k < end ? p[k] : 0) << (8 * k);
  return uint32_t(v >> (at % 8));
}

struct FloatCode {
  const floats::CodeHeader& header;  // in shared memory
  uint32_t depth = 0, nbytes;  // of the whole coded plane
  bool sound;

  CC_HD FloatCode(const floats::CodeHeader& header, uint32_t n) : header(header) {
    uint32_t symbols = 0, kraft = 0;
    nbytes = sizeof header + header.escapes;
    sound = true;
    for (uint32_t d = 0; d < floats::max_depth; d++) {
      symbols += header.leaves[d];
      kraft += header.leaves[d] * (128u >> d);
      if (header.leaves[d]) depth = d + 1;
    }
    for (uint32_t d = 0; d < depth; d++) {
      sound = sound && header.open[d] <= n;
      nbytes += (header.open[d] + 7) / 8;
    }
    nbytes = (nbytes + 7) / 8 * 8;
    sound = sound && symbols <= floats::max_symbols && kraft == 256;
  }
};

// A thread's own values in a plane, up to 32 adjacent ones, which no other thread accesses. Loops over them
// are not unrolled, to keep their bytes out of registers.
struct FloatRun {
  uint32_t* plane;
  uint32_t first, valid, words;

  CC_HD FloatRun(uint32_t* plane, uint32_t first, uint32_t n) : plane(plane), first(first / 4) {
    valid = first >= n ? 0 : n - first < 32 ? n - first : 32;
    words = (valid + 3) / 4;
  }
  CC_HD uint32_t& operator[](uint32_t w) const { return plane[spot(first + w)]; }

  // Bit k is test(value k).
  template <class Test>
  CC_HD uint32_t which(Test test) const {
    uint32_t found = 0;
#pragma unroll 1
    for (uint32_t w = 0; w < words; w++) {
      const uint32_t v = (*this)[w];
      for (uint32_t k = 0; k < 4; k++) found |= uint32_t(test(v >> (8 * k) & 255)) << (4 * w + k);
    }
    return found & (valid < 32 ? (1u << valid) - 1 : ~0u);
  }
  // Replaces value k by change(value k, bit k of marked).
  template <class Change>
  CC_HD void apply(uint32_t marked, Change change) const {
#pragma unroll 1
    for (uint32_t w = 0; w < words; w++, marked >>= 4) {
      const uint32_t v = (*this)[w];
      uint32_t changed = 0;
      for (uint32_t k = 0; k < 4; k++)
        changed |= (change(v >> (8 * k) & 255, marked >> k & 1) & 255) << (8 * k);
      (*this)[w] = changed;
    }
  }
};

// Decodes a coded plane of n values at `in`; false if it is invalid.
CC_HD bool float_decode_coded(const FloatCode& code, const uint8_t* in, uint32_t n, uint32_t* plane,
                              uint32_t* at, uint32_t* sums) {
  const floats::CodeHeader& h = code.header;
  uint32_t escapes = 0;
  for (uint32_t first = 0; first < n; first += 32 * float_cta) {
    const FloatRun run(plane, first + 32 * threadIdx.x, n);
    const uint8_t* stream = in + sizeof h;
    uint32_t shorter = 0, all;  // number of codes of at most d bits
    for (uint32_t w = 0; w < run.words; w++) run[w] = 0;
#pragma unroll 1
    for (uint32_t d = 0; d < code.depth; d++) {
      const uint32_t below = shorter, before = at[d];
      const uint32_t open = run.which([&](uint32_t v) { return v >= below; });
      const uint32_t begin = before + sum_before(uint32_t(__popc(open)), sums, all);
      const uint32_t nbytes = (h.open[d] + 7u) / 8;
      uint32_t bits = float_bits(stream, stream + nbytes, begin);
      run.apply(open, [&](uint32_t v, uint32_t is_open) {
        const uint32_t longer = 2 * v - below + (bits & 1);
        bits >>= is_open;
        return is_open ? longer : v;
      });
      if (threadIdx.x == 0) at[d] = before + all;
      shorter += h.leaves[d];
      stream += nbytes;
    }
    const uint32_t rare = run.which([&](uint32_t v) { return v == h.escape; });
    uint32_t next = escapes + sum_before(uint32_t(__popc(rare)), sums, all);
    run.apply(rare, [&](uint32_t v, uint32_t is_rare) {
      if (!is_rare) return uint32_t(h.symbol[v & 15]);
      return next < h.escapes ? uint32_t(stream[next++]) : 0u;
    });
    escapes += all;
  }
  __syncthreads();  // all threads know the last positions
  bool sound = escapes == h.escapes;
  for (uint32_t d = 0; d < code.depth; d++) sound = sound && at[d] == h.open[d];
  return sound;
}

// Upper bytes of four float16, from their first two planes.
CC_HD uint32_t float16_upper(uint32_t exponent, uint32_t others) {
  return (exponent & 0x1f1f1f1f) << 2 | (others & 0x04040404) << 5 | (others & 0x03030303);
}

// Adds the bytes of four values one by one.
CC_HD uint32_t add_bytes(uint32_t a, uint32_t b) {
  constexpr uint32_t low = 0x7f7f7f7f;
  return ((a & low) + (b & low)) ^ ((a ^ b) & ~low);
}

CC_HD void float_decode_bits(floats::PlaneHeader h, const uint8_t* in, uint32_t n, uint32_t* plane) {
  const uint32_t groups = (n + 63) / 64, row = 8 * groups;
  for (uint32_t w = threadIdx.x; w < (n + 3) / 4; w += float_cta) {
    const uint8_t* byte = in + w / 2;
    uint32_t v = 0;
    for (uint32_t left = h.varying; left; left &= left - 1, byte += row) {
      const uint32_t bits = *byte >> (4 * (w % 2)) & 15;
      v |= (bits * 0x00204081u & 0x01010101u) * (left & (0u - left));
    }
    plane[spot(w)] = add_bytes(v, h.base * 0x01010101u);
  }
}

// Decodes the planes of a chunk of n values; returns their end, or null if they are invalid. Same result in
// all threads.
template <uint32_t dtype>
CC_HD const uint8_t* float_decode_planes(const uint8_t* in, const uint8_t* end, uint32_t n,
                                         FloatChunk<dtype>& chunk) {
  using C = FloatChunk<dtype>;
  const uint8_t* header = in;
  if (uint64_t(end - in) < C::header_nbytes) return nullptr;
  in += C::header_nbytes;
  for (uint32_t p = 0; p < C::planes; p++, header += 2) {
    const floats::PlaneHeader h = {header[0], header[1]};
    uint32_t* plane = chunk.plane[dtype == FLOAT16 && p == 2 ? 1 : p];
    if (h.varying == 255 && h.base == 255) {
      if (uint64_t(end - in) < sizeof chunk.code) return nullptr;
      __syncthreads();  // all have finished the previous plane
      if (threadIdx.x < sizeof chunk.code / 4)
        reinterpret_cast<uint32_t*>(&chunk.code)[threadIdx.x] =
            reinterpret_cast<const uint32_t*>(in)[threadIdx.x];
      if (threadIdx.x < floats::max_depth) chunk.at[threadIdx.x] = 0;
      __syncthreads();
      const FloatCode code(chunk.code, n);
      if (!code.sound || code.nbytes > uint64_t(end - in)) return nullptr;
      if (!float_decode_coded(code, in, n, plane, chunk.at, chunk.sums)) return nullptr;
      in += code.nbytes;
    } else {
      const uint32_t raw = (n + 7) / 8 * 8, bits = uint32_t(__popc(h.varying)) * ((n + 63) / 64) * 8;
      const uint32_t nbytes = h.varying == 255 ? raw : bits;
      if (nbytes > uint64_t(end - in)) return nullptr;
      if (h.varying != 255) float_decode_bits(h, in, n, plane);
      else
        for (uint32_t w = threadIdx.x; w < (n + 3) / 4; w += float_cta)
          plane[spot(w)] = reinterpret_cast<const uint32_t*>(in)[w];
      in += nbytes;
    }
    if (dtype == FLOAT16 && p == 1) {  // the upper bytes are complete, and the other plane is free again
      __syncthreads();
      for (uint32_t w = threadIdx.x; w < C::values / 4; w += float_cta)
        chunk.plane[0][w] = float16_upper(chunk.plane[0][w], chunk.plane[1][w]);
      __syncthreads();
    }
  }
  return in;
}

// Planes to values, starting at index `first` of the array.
template <uint32_t dtype, class T, bool adding>
CC_HD void float_join(const Job& job, uint64_t first, uint32_t n, const FloatChunk<dtype>& chunk) {
  using C = FloatChunk<dtype>;
  using F = typename C::F;
  for (uint32_t i = threadIdx.x; i < n; i += float_cta) {
    uint64_t word = 0;
    for (uint32_t p = 0; p < C::width; p++)
      word = word << 8 | (chunk.plane[p][spot(i / 4)] >> (8 * (i % 4)) & 255);
    const typename C::Word bits = F::turn_back(typename C::Word(word));
    if constexpr (adding) deliver<T, true>(job.dst, first + i, T::value(bits));
    else reinterpret_cast<typename C::Word*>(job.dst)[first + i] = bits;
  }
}

// job.n: number of real values; job.params: the version, 0.
template <uint32_t dtype, class T, bool adding>
CC_HD void float_decode(const Job& job) {
  using C = FloatChunk<dtype>;
  CC_SHARED(C, chunk);
  const uint64_t chunks = (job.n + C::values - 1) / C::values, fixed = (chunks + 1) / 2 * 8;
  auto ends = reinterpret_cast<const uint32_t*>(job.src);
  bool good = job.params[0] == floats::version && !job.params[1] && fixed <= job.nbytes;
  for (uint64_t c = blockIdx.x; good && c < chunks; c += gridDim.x) {
    const uint64_t left = job.n - c * C::values, begin = c ? 8ull * ends[c - 1] : fixed, end = 8ull * ends[c];
    const uint32_t n = left < C::values ? uint32_t(left) : C::values;
    good = fixed <= begin && begin <= end && end <= job.nbytes && end - begin <= C::max_nbytes &&
           (c + 1 < chunks || end == job.nbytes);
    if (!good) break;
    good = float_decode_planes<dtype>(job.src + begin, job.src + end, n, chunk) == job.src + end;
    __syncthreads();
    if (good) float_join<dtype, T, adding>(job, c * C::values, n, chunk);
    __syncthreads();
  }
  if (!good && threadIdx.x == 0) atomicOr(&job.result->bad, 1u);
}

}  // namespace cuda
}  // namespace CC_LEVEL
}  // namespace compcoll
