// int8, int4 and fp8 on the GPU: a warp takes a block, its lanes every 32nd value.
#pragma once
#include "../blockscale.h"
#include "real.cuh"

namespace compcoll {
namespace CC_LEVEL {
namespace cuda {

template <int largest>
struct Integer {
  static constexpr double limit = largest, error = 0.5 / largest;
  // To nearest even: adding this leaves the integer in the low word.
  static CC_HD uint32_t nearest(double v) { return uint32_t(bit_cast<uint64_t>(v + 0x1.8p52)); }
  static CC_HD uint32_t stochastic(double v, uint32_t hash) {
    return nearest(v + (double(int32_t(hash)) * 0x1p-32 + 0x1p-33));
  }
  static CC_HD double value(uint32_t code) { return double(int32_t(code)); }
};

struct Bytes {
  static constexpr bool halves = false;
  static CC_HD uint64_t nbytes(uint64_t n) { return n; }
};

struct Int8 : Integer<127>, Bytes {
  static CC_HD uint32_t load(const uint8_t* codes, uint64_t i) { return uint32_t(int32_t(int8_t(codes[i]))); }
};

struct Int4 : Integer<7> {
  static constexpr bool halves = true;
  static CC_HD uint64_t nbytes(uint64_t n) { return n / 2 + n % 2; }
  static CC_HD uint32_t load(const uint8_t* codes, uint64_t i) {
    return uint32_t(int32_t(uint32_t(codes[i / 2]) << (i % 2 ? 24 : 28)) >> 28);
  }
};

struct Fp8 : Bytes {
  static constexpr double limit = 448, error = 16.0 / 448;
  static CC_HD uint32_t nearest(double v) { return e4m3_nearest<uint32_t>(to_float(v)); }
  static CC_HD uint32_t stochastic(double v, uint32_t hash) {
    return e4m3_stochastic<uint32_t>(to_float(v), hash);
  }
  static CC_HD double value(uint32_t code) { return to_double(e4m3_value<float>(code)); }
  static CC_HD uint32_t load(const uint8_t* codes, uint64_t i) { return codes[i]; }
};

template <class T> struct ScaleBits { using type = uint32_t; };
template <> struct ScaleBits<F64> { using type = uint64_t; };

template <class Q, class T>
struct Scaled {
  using Scale = typename T::Sum;
  using Bits = typename ScaleBits<T>::type;
  uint64_t block, blocks;
  bool stochastic;

  CC_HD explicit Scaled(const Job& job) {
    block = uint32_t(job.params[0]);
    stochastic = job.params[0] >> 32;
    blocks = (job.n + block - 1) / block;
  }
  CC_HD uint64_t scales_nbytes() const { return blocks * sizeof(Scale); }
  CC_HD uint64_t nbytes(const Job& job) const { return scales_nbytes() + Q::nbytes(job.n); }

  // A tiny float64 scale is lifted out of where its quotients would leave the normal range.
  static CC_HD double lift(Scale s) {
    if constexpr (sizeof(Scale) == 8) return s < 0x1p-500 ? 0x1p600 : 1;
    else return 1;
  }
};

template <class Q, class T>
CC_HD void scaled_encode(const Job& job) {
  using S = Scaled<Q, T>;
  using Stored = typename T::Stored;
  const S layout(job);
  if (layout.nbytes(job) > job.nbytes) return;
  const Stored* x = reinterpret_cast<const Stored*>(job.src);
  auto scales = reinterpret_cast<typename S::Bits*>(job.dst);
  uint8_t* codes = job.dst + layout.scales_nbytes();
  Stored all = 0;
  for (uint64_t b = warp_id(); b < layout.blocks; b += warp_count()) {
    const uint64_t at = b * layout.block;
    Stored most = 0;
    for (uint64_t i = at + lane_id(); i < at + layout.block && i < job.n; i += 32) {
      Stored w = x[i] & Stored(Stored(-1) >> 1);
      most = w > most ? w : most;
    }
    if constexpr (sizeof(Stored) == 2) most = Stored(warp_max(uint32_t(most)));
    else most = warp_max(most);
    all = most > all ? most : all;
    const auto scale = T::value(most);
    const auto bits = bit_cast<typename S::Bits>(scale);
    if (lane_id() == 0) scales[b] = bits;
    const uint32_t key = layout.stochastic ? blockscale_key(job.params[1], bits, b) : 0;
    const double lift = S::lift(scale), top = T::widen(scale) * lift, inverse = most ? Q::limit / top : 0;
#pragma unroll 1  // what is unrolled does not fit into the registers that the division above leaves
    for (uint64_t j = lane_id(); j < layout.block; j += 32) {
      const uint64_t i = at + j;
      double v = i < job.n ? T::widen(T::value(x[i])) : 0;
      if constexpr (sizeof(Stored) == 8) v *= lift;
      v *= inverse;
      uint32_t code = layout.stochastic
                          ? Q::stochastic(v, blockscale_mix(key + uint32_t(j) * blockscale_golden))
                          : Q::nearest(v);
      if constexpr (Q::halves) {
        uint32_t next = __shfl_xor_sync(full_warp, code, 1);
        if (i % 2 == 0 && i < job.n) codes[i / 2] = uint8_t((code & 15) | next << 4);
      } else if (i < job.n) {
        codes[i] = uint8_t(code);
      }
    }
  }
  using Max = typename S::Bits;  // atomics have 32 bits at least
  note_max(&job.result->extent[0], Max(all));
}

template <class Q, class T>
CC_HD void scaled_finish(const Job& job) {
  if (thread_id()) return;
  const Scaled<Q, T> layout(job);
  Result& result = *job.result;
  const auto most = typename T::Stored(result.extent[0]);
  const double top = T::widen(T::value(most));
  const double gap = Q::error * (layout.stochastic ? 2 : 1) * (1 + 0x1p-20), rounding = T::unit * 1.01;
  const uint64_t nbytes = layout.nbytes(job);
  result.nbytes = nbytes > job.nbytes   ? int64_t(TOO_LARGE)
                  : most >= T::infinity ? int64_t(NONFINITE)
                                        : int64_t(nbytes);
  result.bound = most ? top * (gap + rounding) + 4 * T::tiny : 0;
}

template <class Q, class T, bool adding>
CC_HD void scaled_decode(const Job& job) {
  using S = Scaled<Q, T>;
  const S layout(job);
  auto scales = reinterpret_cast<const typename S::Bits*>(job.src);
  const uint8_t* codes = job.src + layout.scales_nbytes();
  for (uint64_t b = warp_id(); b < layout.blocks; b += warp_count()) {
    const auto bits = scales[b];
    constexpr auto infinity =
        sizeof bits == 8 ? typename S::Bits(F64::infinity) : typename S::Bits(F32::infinity);
    // Negative, infinite, or no number; -0 is 0 as on the CPU.
    if (bits >= infinity && bits << 1) {
      if (lane_id() == 0) atomicOr(&job.result->bad, 1u);
      continue;
    }
    const auto scale = bit_cast<typename T::Sum>(bits);
    const double lift = S::lift(scale), top = T::widen(scale) * lift, step = top / Q::limit;
    const uint64_t at = b * layout.block;
    for (uint64_t i = at + lane_id(); i < at + layout.block && i < job.n; i += 32) {
      double v = Q::value(Q::load(codes, i)) * step;
      if constexpr (sizeof scale == 8) {
        v = v > top ? top : v;
        v = v < -top ? -top : v;
        v *= 1 / lift;
      }
      deliver<T, adding>(job.dst, i, T::round(v));
    }
  }
}

}  // namespace cuda
}  // namespace CC_LEVEL
}  // namespace compcoll
