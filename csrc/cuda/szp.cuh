// szp on the GPU, in one pass: a warp has 32 blocks of a tile of the look-back. An encoder composes them in
// shared memory until their positions are known.
#pragma once
#include "szp_blocks.cuh"

namespace compcoll {
namespace CC_LEVEL {
namespace cuda {

template <class T>
struct SzpBits {
  using type = uint32_t;
};
template <>
struct SzpBits<F64> {
  using type = uint64_t;
};

// The bits of the largest number of the type that is at most d >= 0.
template <class T>
CC_HD typename SzpBits<T>::type floor_bits(double d) {
  using Bits = typename SzpBits<T>::type;
  if constexpr (sizeof(Bits) == 8) return bit_cast<uint64_t>(d);
  else {
    const float r = to_float(d);
    return bit_cast<uint32_t>(r) - (to_double(r) > d ? 1 : 0);
  }
}

// Values to integers and back, with the parameters of a job from szp_settled.
template <class T>
struct SzpQuantiser {
  using Bits = typename SzpBits<T>::type;
  double step, inverse;
  Bits limit;
  uint32_t sure = 0;  // zigzag integers below it cannot be carried past the bound by rounding: szp.h

  CC_HD explicit SzpQuantiser(const Job& job)
      : step(bit_cast<double>(job.params[1])),
        inverse(1 / step),
        limit(floor_bits<T>(bit_cast<double>(job.params[0]))) {
    constexpr bool narrow = sizeof(Bits) == 4;
    if (sizeof(typename T::Stored) > 2 && limit && step >= (narrow ? 0x1p-130 : 0) &&
        step <= (narrow ? 0x1p+109 : 0x1p+990))
      sure = narrow ? 1u << 16 : 1u << 30;
  }

  // The integer, and in `plain` its zigzag code, or ~0 if it needs more than 32 bits.
  CC_HD uint32_t operator()(typename T::Stored bits, uint32_t& plain) const {
    const uint64_t sum = szp_quantise<double, uint64_t>(T::widen(T::value(bits)), inverse);
    const uint32_t q = uint32_t(sum);
    plain = uint32_t(sum >> 32) + (q >> 31) == szp_magic_high ? szp_zigzag<int32_t>(q) : ~0u;
    return q;
  }
  CC_HD bool within(typename T::Stored bits, uint32_t q) const {
    const auto x = T::value(bits);
    const auto error = bit_cast<Bits>(subtract(x, T::round(double(int32_t(q)) * step))) & Bits(~Bits(0) >> 1);
    return !__ballot_sync(full_warp, error > limit);
  }
};

// Codes the blocks of one warp in a tile. whole: all values are present.
template <class T, bool whole>
CC_HD void szp_encode_blocks(const Job& job, const SzpQuantiser<T>& quantise, const Transposer& transpose,
                             uint64_t first, SzpMade<T>& made) {
  using Stored = typename T::Stored;
  // Number of blocks whose loads are in flight together.
  constexpr uint32_t ahead = sizeof(Stored) == 8 || !whole ? 2 : 4;
  const uint32_t lane = lane_id();
  auto src = reinterpret_cast<const Stored*>(job.src) + (whole ? first * szp_block + lane : 0);
#pragma unroll 1
  for (uint32_t group = 0; group < (whole ? szp_each : made.count); group += ahead) {
    Stored bits[ahead];  // after the last value, it repeats
    const uint64_t begin = (first + group) * szp_block + lane;
    for (uint32_t k = 0; k < ahead; k++) {
      const uint64_t i = begin + k * szp_block;
      bits[k] = whole ? src[(group + k) * szp_block] : src[i < job.n ? i : job.n - 1];
    }
    uint32_t q[ahead], plain[ahead];
    for (uint32_t k = 0; k < ahead; k++) q[k] = quantise(bits[k], plain[k]);
    // Called in the lane of each block, which knows the "or" of the block's integers.
    const auto within = [&](uint32_t all) {
      uint32_t wrong = 0;
      if (__ballot_sync(full_warp, all >= quantise.sure))
        for (uint32_t k = 0; k < ahead; k++) wrong |= uint32_t(!quantise.within(bits[k], q[k])) << k;
      return all < quantise.sure || !(wrong >> (lane - group) % 32 & 1);
    };
    made.template code<ahead, whole>(transpose, group, q, plain, within,
                                     [&](uint32_t* out, uint32_t k) { store_raw(out, lane, bits[k]); });
  }
}

// job.params: the bits of the absolute bound, or 0 and those of a relative one.
template <class T>
CC_HD void szp_encode(const Job& given) {
  CC_SHARED(SzpShared<T>, shared);
  const Job job = szp_settled(given);
  if (given.params[1] && !szp_valid(bit_cast<double>(job.params[1]))) return complete(job);  // by szp_settle
  if (thread_id() == 0 && !given.params[1]) {
    job.result->bound = bit_cast<double>(job.params[0]);
    job.result->params[0] = job.params[1];
  }
  const SzpQuantiser<T> quantise(job);
  const Transposer transpose;
  Checksum sum(job);
  const uint64_t tiles = szp_tiles(job.n);
  for (uint64_t t; (t = draw_tile(job, shared.pass.drawn)) < tiles;) {
    const uint64_t first = szp_first(t);
    SzpMade<T> made(shared.words[threadIdx.x / 32], job, first, szp_count(job.n, first));
    if ((first + szp_each) * szp_block <= job.n) szp_encode_blocks<T, true>(job, quantise, transpose, first, made);
    else szp_encode_blocks<T, false>(job, quantise, transpose, first, made);
    made.write(job, t, tile_words(job), shared.pass.sums, sum);
  }
  sum.note(job);
  complete(job);
}

template <class T, bool adding>
CC_HD void szp_deliver_raw(const Job& job, uint64_t i, typename T::Stored bits) {
  if constexpr (adding) deliver<T, true>(job.dst, i, T::value(bits));
  else reinterpret_cast<typename T::Stored*>(job.dst)[i] = bits;
}

// Decodes the blocks of one warp in a tile. whole: all values are present.
template <class T, bool adding, bool whole>
CC_HD void szp_decode_blocks(const Job& job, const SzpRead& in, const Transposer& transpose, double step,
                             uint64_t first_block) {
  using Stored = typename T::Stored;
  constexpr uint32_t ahead = sizeof(Stored) == 8 ? 4 : 8;  // more would spill registers
  const uint32_t lane = lane_id();
  const uint64_t first = first_block * szp_block + lane;
  const uint32_t count = whole ? szp_each : szp_count(job.n, first_block);
  uint8_t* out = job.dst + first * sizeof(typename Choice<adding, typename T::Sum, Stored>::type);
#pragma unroll 1
  for (uint32_t group = 0; group < count; group += ahead) {
    SzpPlace at[ahead];
    uint32_t word[ahead];
    for (uint32_t k = 0; k < ahead; k++) at[k] = in.own.from(group + k), word[k] = in.load(at[k]);
    for (uint32_t k = 0; k < ahead; k++) {
      const uint32_t q = in.integer(transpose, at[k], group + k, word[k]);
      const uint32_t i = (group + k) * szp_block;
      if ((whole || first + i < job.n) && !(at[k].bits & SzpPlace::raw))
        deliver<T, adding>(out, i, T::round(double(int32_t(q)) * step));
    }
  }
  for (uint32_t raw = __ballot_sync(full_warp, in.width == szp_raw); raw; raw &= raw - 1) {
    const uint32_t k = lowest_one(raw);
    const uint64_t i = first + k * szp_block;
    const SzpPlace at = in.own.from(k);
    if (i < job.n) szp_deliver_raw<T, adding>(job, i, load_raw<Stored>(in.words + at.word(), lane));
  }
}

// job.params: the bits of the step.
template <class T, bool adding>
CC_HD void szp_decode(const Job& job) {
  CC_SHARED(TilePass, shared);
  const double step = bit_cast<double>(job.params[0]);
  const uint64_t tiles = szp_tiles(job.n);
  if (!szp_valid(step) || (!tiles && job.nbytes)) {
    if (thread_id() == 0) atomicOr(&job.result->bad, 2u);
    return;
  }
  const Transposer transpose;
  for (uint64_t t; (t = draw_tile(job, shared.drawn)) < tiles;) {
    SzpRead in;
    in.sizes<T>(job, t);
    const uint32_t upto = sum_upto(in.nbytes), all = __shfl_sync(full_warp, upto, 31);
    const uint64_t begin = sum_before_warp(tile_words(job), t, all, shared.sums);
    if (!in.place(job, t, begin, upto - in.nbytes)) continue;
    const uint64_t first = szp_first(t);
    if ((first + szp_each) * szp_block <= job.n) szp_decode_blocks<T, adding, true>(job, in, transpose, step, first);
    else szp_decode_blocks<T, adding, false>(job, in, transpose, step, first);
  }
}

}  // namespace cuda
}  // namespace CC_LEVEL
}  // namespace compcoll
