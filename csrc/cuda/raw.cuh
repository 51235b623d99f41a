// Unchanged bytes: the payload of `raw`, and the samples from which `lossless` chooses; and conversion of
// 16-bit floats to an accumulator and back.
#pragma once
#include "mpc.cuh"

namespace compcoll {
namespace CC_LEVEL {
namespace cuda {

// Copies job.n bytes: pieces of params[0] bytes, which begin params[1] bytes apart in src and are contiguous
// in dst, or one piece if params[0] is 0. Several pieces consist of whole, aligned packs of 16 bytes.
CC_HD void raw_copy(const Job& job) {
  using Row = Pack<uint32_t, 4>;
  const uint64_t piece = job.params[0] ? job.params[0] : job.n, gap = job.params[1] - piece;
  auto from = [&](uint64_t at) { return piece < job.n ? job.src + at + at / piece * gap : job.src + at; };
  uint64_t done = 0;
  if (aligned(job.src, 16) && aligned(job.dst, 16)) {
    done = job.n / 16 * 16;
    for (uint64_t at = 16 * thread_id(); at < done; at += 16 * thread_count())
      *reinterpret_cast<Row*>(job.dst + at) = *reinterpret_cast<const Row*>(from(at));
  } else if (aligned(job.src, 4) && aligned(job.dst, 4)) {
    done = job.n / 4 * 4;
    for (uint64_t at = 4 * thread_id(); at < done; at += 4 * thread_count())
      *reinterpret_cast<uint32_t*>(job.dst + at) = *reinterpret_cast<const uint32_t*>(from(at));
  }
  for (uint64_t at = done + thread_id(); at < job.n; at += thread_count()) job.dst[at] = *from(at);
}

// Adds words of the payload to an accumulator, element by element.
template <class W, class Sink>
CC_HD void raw_decode_add(const Job& job) {
  const uint64_t words = (job.n + sizeof(W) - 1) / sizeof(W);
  for (uint64_t i = thread_id(); i < words; i += thread_count()) Sink::template put<false>(job, i, mpc_load<W>(job, i));
}

// Converts job.n elements of A to elements of B.
template <class A, class B, class Convert>
CC_HD void raw_convert(const Job& job, Convert convert) {
  using In = Pack<A, 4>;
  using Out = Pack<B, 4>;
  uint64_t done = 0;
  if (aligned(job.src, sizeof(In)) && aligned(job.dst, sizeof(Out))) {
    done = job.n / 4;
    for (uint64_t i = thread_id(); i < done; i += thread_count()) {
      const In in = reinterpret_cast<const In*>(job.src)[i];
      Out out;
      for (int k = 0; k < 4; k++) out.v[k] = convert(in.v[k]);
      reinterpret_cast<Out*>(job.dst)[i] = out;
    }
    done *= 4;
  }
  for (uint64_t i = done + thread_id(); i < job.n; i += thread_count())
    reinterpret_cast<B*>(job.dst)[i] = convert(reinterpret_cast<const A*>(job.src)[i]);
}

// Exact, including subnormals and NaN.
template <class T>
CC_HD void raw_widen(const Job& job) {
  raw_convert<uint16_t, uint32_t>(job, [](uint16_t bits) { return bit_cast<uint32_t>(T::value(bits)); });
}

CC_HD uint16_t nearest(F16, uint32_t bits) { return float_to_float16(bit_cast<float>(bits)); }
CC_HD uint16_t nearest(BF16, uint32_t bits) {
  const bool nan = (bits & 0x7fffffff) > 0x7f800000;
  return uint16_t(nan ? (bits >> 16 & 0x8000) | 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Rounds to nearest even; a NaN stays a NaN.
template <class T>
CC_HD void raw_round(const Job& job) {
  raw_convert<uint32_t, uint16_t>(job, [](uint32_t bits) { return nearest(T(), bits); });
}

}  // namespace cuda
}  // namespace CC_LEVEL
}  // namespace compcoll
