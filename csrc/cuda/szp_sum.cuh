// Sums of two szp payloads in one pass, on their integers if these fit: Add of csrc/cpu/szp.cpp. One
// look-back finds the positions of both terms, another one that of the sum.
#pragma once
#include "szp.cuh"

namespace compcoll {
namespace CC_LEVEL {
namespace cuda {

// job.params: the bits of the step, and the address of the second term's job; job.src: that of the first.
struct SzpTerms {
  const Job &a, &b;
  double step;

  CC_HD explicit SzpTerms(const Job& job)
      : a(*reinterpret_cast<const Job*>(job.src)),
        b(*reinterpret_cast<const Job*>(size_t(job.params[1]))),
        step(bit_cast<double>(job.params[0])) {}
};

// One lane's value of a term's block, where q is its integer.
template <class T>
CC_HD typename T::Sum szp_term(const SzpRead& in, SzpPlace at, uint32_t q, double step, bool valid) {
  if (!(at.bits & SzpPlace::raw)) return T::round(double(int32_t(q)) * step);
  using Stored = typename T::Stored;
  return T::value(valid ? load_raw<Stored>(in.words + at.word(), lane_id()) : Stored(0));
}

template <class T>
CC_HD bool szp_finite(typename T::Sum v) {
  return T::widen(v) <= F64::most && T::widen(v) >= -F64::most;
}

// The bits of the sum of two values; records the largest sum of finite values.
template <class T>
CC_HD typename T::Stored szp_add_values(typename T::Sum x, typename T::Sum y, double& largest) {
  const auto v = add(x, y);
  const double size = T::widen(v) < 0 ? -T::widen(v) : T::widen(v);
  if (size > largest && szp_finite<T>(x) && szp_finite<T>(y)) largest = size;
  // Which NaN a sum keeps depends on the machine.
  if (size != size) return typename T::Stored(T::infinity | (T::infinity & -T::infinity) >> 1);
  return T::stored(T::round(T::widen(v)));
}

template <class T>
struct SzpSumShared {
  SzpShared<T> sum;
  TileSums terms;
};

// Reads both terms' blocks of a tile; true if they are valid. Their sizes in words are summed as one number,
// with 31 bits each. No payload is that large: before a sum overflows, it is found to pass the payload's end.
template <class T>
CC_HD bool szp_read_terms(const Job& job, const SzpTerms& terms, uint64_t t, TileSums& sums, SzpRead* in) {
  in[0].sizes<T>(terms.a, t), in[1].sizes<T>(terms.b, t);
  uint32_t before[2], all[2];
  for (int i = 0; i < 2; i++) {
    const uint32_t words = (in[i].nbytes + 3) / 4, upto = sum_upto(words);
    before[i] = 4 * (upto - words), all[i] = __shfl_sync(full_warp, upto, 31);
  }
  const uint64_t begin = sum_before_warp(tile_words(job), t, all[0] | uint64_t(all[1]) << 31, sums);
  const bool a = in[0].place(terms.a, t, 4 * (begin & 0x7fffffff), before[0]);
  return in[1].place(terms.b, t, 4 * (begin >> 31), before[1]) && a;
}

// A lane's maxima, for the bound: the largest integer, or 1 less, and the largest value.
struct SzpMost {
  uint32_t integer = 0;
  double value = 0;
};

template <class T>
CC_HD void szp_add_block(const Job& job, const SzpTerms& terms, const SzpRead* in,
                         const Transposer& transpose, uint64_t first, uint32_t k, SzpMade<T>& made,
                         SzpMost& most) {
  const SzpPlace x = in[0].own.from(k), y = in[1].own.from(k);
  const uint32_t wx = in[0].load(x), wy = in[1].load(y);
  const uint32_t qx = in[0].integer(transpose, x, k, wx);
  const uint32_t qy = in[1].integer(transpose, y, k, wy), q = qx + qy;
  const bool overflow = ((qx ^ q) & (qy ^ q)) >> 31;
  const bool within = !__ballot_sync(full_warp, overflow) && !((x.bits | y.bits) & SzpPlace::raw);
  const uint32_t size = within ? q ^ uint32_t(int32_t(q) >> 31) : 0;
  most.integer = size > most.integer ? size : most.integer;
  const uint32_t plain = szp_zigzag<int32_t>(q);
  const auto fits = [&](uint32_t) { return within; };
  made.template code<1, false>(transpose, k, &q, &plain, fits, [&](uint32_t* out, uint32_t) {
    const bool valid = (first + k) * szp_block + lane_id() < job.n;
    const auto a = szp_term<T>(in[0], x, qx, terms.step, valid);
    const auto b = szp_term<T>(in[1], y, qy, terms.step, valid);
    const auto bits = szp_add_values<T>(a, b, most.value);
    if (valid) store_raw(out, lane_id(), bits);
  });
}

template <class T>
CC_HD void szp_sum_finish(const Job& job, const SzpTerms& terms) {
  Result& result = *job.result;
  const double integers = (double(uint32_t(result.extent[2])) + 1) * terms.step;
  double largest = bit_cast<double>(result.extent[1]);
  if (integers > largest) largest = integers;
  if (largest > T::most) largest = bit_cast<double>(F64::infinity);
  if (terms.a.result->bad || terms.b.result->bad || !szp_valid(terms.step)) result.nbytes = BAD_STREAM;
  result.bound = largest * T::unit * (1 + 0x1p-9) + 2 * T::tiny;
}

// job.scratch: a counter, a word for each tile's terms, and one for its sum.
template <class T>
CC_HD void szp_sum(const Job& job) {
  CC_SHARED(SzpSumShared<T>, shared);
  const SzpTerms terms(job);
  const uint64_t tiles = szp_valid(terms.step) ? szp_tiles(job.n) : 0;
  const Transposer transpose;
  SzpMost most;
  Checksum sum(job);
  for (uint64_t t; (t = draw_tile(job, shared.sum.pass.drawn)) < tiles;) {
    const uint64_t first = szp_first(t);
    SzpRead in[2];
    const bool sound = szp_read_terms<T>(job, terms, t, shared.terms, in);
    const uint32_t count = sound ? szp_count(job.n, first) : 0;
    SzpMade<T> made(shared.sum.words[threadIdx.x / 32], job, first, count);
#pragma unroll 1
    for (uint32_t k = 0; k < count; k++) szp_add_block<T>(job, terms, in, transpose, first, k, made, most);
    made.write(job, t, tile_words(job) + tiles, shared.sum.pass.sums, sum);
  }
  note_max(&job.result->extent[1], bit_cast<uint64_t>(most.value));
  note_max(&job.result->extent[2], most.integer);
  sum.note(job);
  complete(job, [&] { szp_sum_finish<T>(job, terms); });
}

}  // namespace cuda
}  // namespace CC_LEVEL
}  // namespace compcoll
