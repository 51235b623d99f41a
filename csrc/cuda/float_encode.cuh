// The encoder of `float`. A block of threads splits a chunk into planes, chooses each plane's form and
// thereby the chunk's size, finds the chunk's position by look-back, and writes it there. Coded planes are
// composed in shared memory, a window at a time.
#pragma once
#include "float.cuh"
#include "scan.cuh"

namespace compcoll {
namespace CC_LEVEL {
namespace cuda {

constexpr uint32_t float_window = 2048;  // words

template <uint32_t dtype>
struct FloatEncoding {
  using C = FloatChunk<dtype>;
  C chunk;
  uint32_t window[float_window], count[256], key[floats::max_symbols - 1];  // of bytes; of the commonest bytes
  uint32_t any[2], missing[2];              // bits that are 1, and 0, in some value
  uint32_t lengths[floats::max_depth + 1];  // values by code length; first, the escapes
  uint32_t flag;
  uint16_t entry[256];  // a byte's code, then its length, then 1 if it is the escape
  floats::CodeHeader code[C::planes];
  floats::PlaneHeader form[C::planes];
  uint32_t nbytes[C::planes];
  uint64_t begin, drawn;
};

// Values 4 w to 4 w + 3 of a plane.
template <uint32_t dtype>
CC_HD uint32_t plane_word(const FloatChunk<dtype>& chunk, uint32_t p, uint32_t w) {
  if constexpr (dtype == FLOAT16) {
    const uint32_t v = chunk.plane[p == 2][spot(w)];
    return p == 2 ? v : p ? (v >> 5 & 0x04040404) | (v & 0x03030303) : v >> 2 & 0x1f1f1f1f;
  } else {
    return chunk.plane[p][spot(w)];
  }
}
template <uint32_t dtype>
CC_HD uint32_t plane_byte(const FloatChunk<dtype>& chunk, uint32_t p, uint32_t i) {
  return plane_word<dtype>(chunk, p, i / 4) >> (8 * (i % 4)) & 255;
}

// Values starting at index `first` of the array to planes, and the bits that vary in each plane.
template <uint32_t dtype>
CC_HD void float_split(const Job& job, uint64_t first, uint32_t n, FloatEncoding<dtype>& e) {
  using C = FloatChunk<dtype>;
  if (threadIdx.x < 2) e.any[threadIdx.x] = e.missing[threadIdx.x] = 0;
  __syncthreads();
  auto src = reinterpret_cast<const typename C::Word*>(job.src) + first;
  uint64_t any = 0, missing = 0;
  for (uint32_t i = threadIdx.x; i < n; i += float_cta) {
    const uint64_t v = typename C::Word(C::F::turn(src[i]));
    any |= v, missing |= ~v;
    for (uint32_t p = 0; p < C::width; p++) {
      auto four = reinterpret_cast<uint8_t*>(&e.chunk.plane[p][spot(i / 4)]);
      four[i % 4] = uint8_t(v >> (8 * (C::width - 1 - p)));
    }
  }
  for (uint32_t h = 0; h < 2; h++) {
    const uint32_t set = warp_or(uint32_t(any >> (32 * h))), clear = warp_or(uint32_t(missing >> (32 * h)));
    if (lane_id() == 0) {
      atomicOr(&e.any[h], set);
      atomicOr(&e.missing[h], clear);
    }
  }
  __syncthreads();
  any = e.any[0] | uint64_t(e.any[1]) << 32;
  missing = e.missing[0] | uint64_t(e.missing[1]) << 32;
  if (threadIdx.x < C::planes) {
    const uint32_t p = threadIdx.x;
    uint32_t set, all;
    if constexpr (dtype == FLOAT16) {
      const uint32_t up = uint32_t(any >> 8), full = uint32_t(~missing >> 8) & 255;
      set = p == 2 ? any & 255 : p ? C::F::others(up) : C::F::exponent(up);
      all = p == 2 ? ~missing & 255 : p ? C::F::others(full) : C::F::exponent(full);
    } else {
      set = any >> (8 * (C::width - 1 - p)) & 255, all = ~missing >> (8 * (C::width - 1 - p)) & 255;
    }
    e.form[p] = {uint8_t(set ^ all), uint8_t(all)};
  }
  __syncthreads();
}

// Counts one in `stride` groups of 64 values. True if a byte is more common than chance explains.
template <uint32_t dtype>
CC_HD bool float_skewed(FloatEncoding<dtype>& e, uint32_t p, uint32_t n, uint32_t stride, uint32_t& total) {
  const uint32_t groups = (n + 64 * stride - 1) / (64 * stride), last = (groups - 1) * 64 * stride;
  total = (groups - 1) * 64 + (n - last < 64 ? n - last : 64);
  __syncthreads();
  e.count[threadIdx.x] = 0;
  if (threadIdx.x == 0) e.flag = 0;
  __syncthreads();
  for (uint32_t j = threadIdx.x; j < total; j += float_cta)
    atomicAdd(&e.count[plane_byte<dtype>(e.chunk, p, j / 64 * 64 * stride + j % 64)], 1u);
  __syncthreads();
  if (e.count[threadIdx.x] > total / 32 + 2) e.flag = 1;
  __syncthreads();
  return e.flag;
}

// The keys of the commonest bytes, in descending order: each thread finds the rank of one byte, whose key
// replaces its count.
template <uint32_t dtype>
CC_HD void float_rank(FloatEncoding<dtype>& e) {
  const uint32_t own = floats::rank_key(threadIdx.x, e.count[threadIdx.x]);
  e.count[threadIdx.x] = own;
  if (threadIdx.x < floats::max_symbols - 1) e.key[threadIdx.x] = 0;
  __syncthreads();
  uint32_t rank = 0;
#pragma unroll 16
  for (uint32_t s = 0; s < 256; s++) rank += e.count[s] > own;
  if (own && rank < floats::max_symbols - 1) e.key[rank] = own;
  __syncthreads();
}

// Fills in each byte's entry.
CC_HD void float_entries(const floats::CodeHeader& code, uint16_t* entry) {
  uint32_t at = 0, i = 0, found = 0;
  for (uint32_t d = 0; d < floats::max_depth; d++)
    for (uint32_t k = 0; k < code.leaves[d]; k++, i++, at += 128u >> d) {
      const uint32_t own = at | (d + 1) << 8;
      if (i == code.escape) found = found ? found : own | 1u << 12;
      else if (code.symbol[i] == threadIdx.x) found = own;
    }
  __syncthreads();
  entry[threadIdx.x] = uint16_t(found);
  __syncthreads();
}

// Completes a code's header from all values; returns their size.
template <uint32_t dtype>
CC_HD uint32_t float_measure(FloatEncoding<dtype>& e, uint32_t p, uint32_t n) {
  floats::CodeHeader& code = e.code[p];
  float_entries(code, e.entry);
  if (threadIdx.x <= floats::max_depth) e.lengths[threadIdx.x] = 0;
  __syncthreads();
  uint64_t own = 0;  // a byte for each length: a thread has at most 64 values
  for (uint32_t i = threadIdx.x; i < n; i += float_cta) {
    const uint32_t entry = e.entry[plane_byte<dtype>(e.chunk, p, i)];
    own += (1ull << (8 * (entry >> 8 & 7))) + (entry >> 12);
  }
  for (uint32_t d = 0; d <= floats::max_depth; d++) {
    const uint32_t all = warp_sum(uint32_t(own >> (8 * d)) & 255);
    if (lane_id() == 0) atomicAdd(&e.lengths[d], all);
  }
  __syncthreads();
  uint32_t open = n, nbytes = sizeof code + e.lengths[0];
  for (uint32_t d = 0; d < floats::max_depth; d++) {
    if (threadIdx.x == 0) code.open[d] = uint16_t(open);
    nbytes += (open + 7) / 8;
    open -= e.lengths[d + 1];
  }
  if (threadIdx.x == 0) code.escapes = uint16_t(e.lengths[0]);
  return nbytes;
}

// Chooses a plane's form, which determines its size.
template <uint32_t dtype>
CC_HD void float_settle(FloatEncoding<dtype>& e, uint32_t p, uint32_t n) {
  const floats::PlaneHeader h = e.form[p];
  const uint32_t groups = (n + 63) / 64, raw = (n + 7) / 8 * 8;
  const uint32_t bits = uint32_t(__popc(h.varying)) * groups * 8;
  const uint32_t other = bits < raw ? bits : raw;
  uint32_t total, coded = ~0u;
  if (n > sizeof e.code[p] && bits > groups * 8 &&
      float_skewed<dtype>(e, p, n, 4 * floats::sample_stride, total) &&
      float_skewed<dtype>(e, p, n, floats::sample_stride, total)) {
    __syncthreads();
    if (threadIdx.x < sizeof e.code[p] / 4) reinterpret_cast<uint32_t*>(&e.code[p])[threadIdx.x] = 0;
    float_rank(e);
    if (threadIdx.x == 0) {
      const uint64_t need = floats::make_code(e.key, total, e.code[p]);
      e.flag = need * n / total / 8 + sizeof e.code[p] < other - other / 64;
    }
    __syncthreads();
    if (e.flag) coded = float_measure<dtype>(e, p, n);
  }
  __syncthreads();
  if (threadIdx.x) return;
  const bool shorter = coded <= n && coded < other;
  if (shorter) e.form[p] = {255, 255};
  else if (bits >= raw) e.form[p] = {255, 0};
  e.nbytes[p] = shorter ? (coded + 7) / 8 * 8 : other;
}

// Writes up to 32 bits at bit `at` of a plane, as far as they are in the window that begins at word `begin`.
CC_HD void float_put(uint32_t* window, uint32_t begin, uint32_t bits, uint32_t at) {
  const uint32_t w = at / 32 - begin;
  const uint64_t both = uint64_t(bits) << (at % 32);
  if (uint32_t(both) && w < float_window) atomicOr(&window[w], uint32_t(both));
  if (both >> 32 && w + 1 < float_window) atomicOr(&window[w + 1], uint32_t(both >> 32));
}

// Writes the part of a coded plane that is in the window.
template <uint32_t dtype>
CC_HD void float_compose(FloatEncoding<dtype>& e, uint32_t p, uint32_t n, uint32_t window) {
  const floats::CodeHeader& code = e.code[p];
  uint32_t start = 8 * sizeof code, all;
  if (threadIdx.x < sizeof code / 4)
    float_put(e.window, window, reinterpret_cast<const uint32_t*>(&code)[threadIdx.x], 32 * threadIdx.x);
#pragma unroll 1
  for (uint32_t d = 0; d <= floats::max_depth; d++) {  // the escapes follow the streams
    uint32_t at = start;
    for (uint32_t first = 0; first < n; first += 32 * float_cta) {
      const uint32_t own = first + 32 * threadIdx.x, end = own + 32 < n ? own + 32 : n;
      uint32_t bits = 0, used = 0;
      for (uint32_t i = own; i < end; i++) {
        const uint32_t entry = e.entry[plane_byte<dtype>(e.chunk, p, i)];
        const uint32_t open = d < floats::max_depth ? (entry >> 8 & 7) > d : entry >> 12;
        bits |= (open & (entry >> (7 - d % 8))) << (used & 31);
        used += open;
      }
      uint32_t place = sum_before(used, e.chunk.sums, all);
      if (d < floats::max_depth) {
        float_put(e.window, window, bits, at + place);
        at += all;
      } else {
        for (uint32_t i = own; used && i < end; i++) {
          const uint32_t byte = plane_byte<dtype>(e.chunk, p, i);
          if (e.entry[byte] >> 12) float_put(e.window, window, byte, at + 8 * place++);
        }
        at += 8 * all;
      }
    }
    start = (at + 7) / 8 * 8;
  }
}

template <uint32_t dtype>
CC_HD void float_write(FloatEncoding<dtype>& e, uint32_t p, uint32_t n, uint8_t* dst) {
  auto out = reinterpret_cast<uint32_t*>(dst);
  const floats::PlaneHeader h = e.form[p];
  const uint32_t words = e.nbytes[p] / 4;
  if (h.varying == 255 && h.base == 255) {
    float_entries(e.code[p], e.entry);
    for (uint32_t begin = 0; begin < words; begin += float_window) {
      for (uint32_t w = threadIdx.x; w < float_window; w += float_cta) e.window[w] = 0;
      __syncthreads();
      float_compose<dtype>(e, p, n, begin);
      __syncthreads();
      for (uint32_t w = threadIdx.x; w < float_window && begin + w < words; w += float_cta)
        out[begin + w] = e.window[w];
      __syncthreads();
    }
  } else if (h.varying == 255) {
    for (uint32_t w = threadIdx.x; w < words; w += float_cta) {
      const uint32_t v = 4 * w < n ? plane_word<dtype>(e.chunk, p, w) : 0, left = 4 * w < n ? n - 4 * w : 0;
      out[w] = left < 4 ? v & ((1u << (8 * left)) - 1) : v;
    }
  } else {
    const uint32_t row = (n + 63) / 64 * 2;  // a warp makes the words of 32 values
    for (uint32_t w = threadIdx.x / 32; w < row; w += float_warps) {
      const uint32_t i = 32 * w + lane_id(), v = i < n ? plane_byte<dtype>(e.chunk, p, i) : 0;
      uint32_t k = 0;
      for (uint32_t left = h.varying; left; left &= left - 1, k++) {
        const uint32_t word = __ballot_sync(full_warp, (v & left & (0u - left)) != 0);
        if (lane_id() == 0) out[k * row + w] = word;
      }
    }
  }
}

// job.n: number of real values.
template <uint32_t dtype>
CC_HD void float_encode(const Job& job) {
  using C = FloatChunk<dtype>;
  CC_SHARED(FloatEncoding<dtype>, e);
  const uint64_t chunks = (job.n + C::values - 1) / C::values, fixed = (chunks + 1) / 2 * 8;
  auto ends = reinterpret_cast<uint32_t*>(job.dst);
  if (chunks && fixed > job.nbytes) {
    if (blockIdx.x == 0 && threadIdx.x == 0) job.result->nbytes = TOO_LARGE;
    return;
  }
  for (uint64_t c; (c = draw_tile(job, e.drawn)) < chunks;) {
    const uint64_t left = job.n - c * C::values;
    const uint32_t n = left < C::values ? uint32_t(left) : C::values;
    float_split<dtype>(job, c * C::values, n, e);
    for (uint32_t p = 0; p < C::planes; p++) float_settle<dtype>(e, p, n);
    __syncthreads();
    uint32_t size = C::header_nbytes;
    for (uint32_t p = 0; p < C::planes; p++) size += e.nbytes[p];
    if (threadIdx.x < 32) {
      const uint64_t before = look_back(tile_words(job), c, size);
      if (threadIdx.x == 0) e.begin = fixed + before;
    }
    __syncthreads();
    const uint64_t end = e.begin + size;
    if (end <= job.nbytes) {
      uint8_t* out = job.dst + e.begin;
      if (threadIdx.x < C::header_nbytes)
        out[threadIdx.x] = threadIdx.x < 2 * C::planes ? reinterpret_cast<uint8_t*>(e.form)[threadIdx.x] : 0;
      out += C::header_nbytes;
      for (uint32_t p = 0; p < C::planes; out += e.nbytes[p++]) float_write<dtype>(e, p, n, out);
      if (threadIdx.x == 0) ends[c] = uint32_t(end / 8);
    }
    if (c == chunks - 1 && threadIdx.x == 0) {
      if (chunks % 2) ends[chunks] = 0;
      job.result->params[0] = floats::version;
      job.result->nbytes = end > job.nbytes ? int64_t(TOO_LARGE) : int64_t(end);
    }
  }
}

}  // namespace cuda
}  // namespace CC_LEVEL
}  // namespace compcoll
