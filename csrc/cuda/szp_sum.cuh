// Sums of two szp payloads, on their integers wherever these fit: Add of csrc/cpu/szp.cpp. Both terms' sizes
// have been scanned before, by the kernels that begin decoding.
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
        step(as<double>(job.params[0])) {}

  CC_HD static bool sound(const Job& term) {
    return !term.result->bad && szp_head(term) + term.result->extent[0] == term.nbytes;
  }
  CC_HD bool sound() const {
    return sound(a) && sound(b) && step >= szp_bound_min && step <= 2 * szp_bound_max;
  }
};

// One lane's value of a term.
template <class T>
struct SzpTerm {
  uint32_t width, q = 0;
  typename T::Stored bits = 0;

  CC_HD SzpTerm(const Job& job, uint64_t b) : width(job.src[b]) {
    const uint8_t* src = job.src + szp_head(job) + job.scratch[b];
    if (width != szp_raw) q = szp_integer(src, width);
    else if (b * szp_block + lane_id() < job.n)
      bits = load_raw<typename T::Stored>(src + lane_id() * sizeof bits);
  }
  CC_HD typename T::Sum value(double step) const {
    return width == szp_raw ? T::value(bits) : T::round(double(int32_t(q)) * step);
  }
};

// One lane's part of the sum of a block. most, largest: its share of the error bound.
template <class T>
struct SzpSum : SzpCoded<T> {
  uint32_t most = 0;
  double largest = 0;

  CC_HD SzpSum(const Job& job, const SzpTerms& terms, uint64_t b) {
    const SzpTerm<T> x(terms.a, b), y(terms.b, b);
    const uint32_t q = x.q + y.q;
    const bool overflow = ((x.q ^ q) & (y.q ^ q)) >> 31;
    const bool integers = x.width != szp_raw && y.width != szp_raw;
    const bool within = !__ballot_sync(full_warp, overflow) && integers;
    if (within) most = q ^ uint32_t(int32_t(q) >> 31);
    this->code_integers(job, b, q, within);
    if (this->width == szp_raw) add_values(x.value(terms.step), y.value(terms.step));
  }

  CC_HD void add_values(typename T::Sum x, typename T::Sum y) {
    const auto v = add(x, y);
    const double size = T::widen(v) < 0 ? -T::widen(v) : T::widen(v);
    if (size <= 0x1.fffffffffffffp+1023) largest = size;
    this->bits = T::stored(T::round(T::widen(v)));
    // Which NaN a sum keeps differs by machine.
    if (size != size) this->bits = typename T::Stored(T::infinity | (T::infinity & -T::infinity) >> 1);
  }
};

template <class T>
CC_HD void szp_sum_measure(const Job& job) {
  const SzpTerms terms(job);
  if (!terms.sound()) return;
  const uint64_t blocks = szp_blocks(job.n), head = szp_head(job);
  uint32_t most = 0;
  uint64_t largest = 0;
  for (uint64_t b = warp_id(); b < blocks; b += warp_count()) {
    const SzpSum<T> sum(job, terms, b);
    szp_put_width(job, b, sum);
    most = sum.most > most ? sum.most : most;
    largest = as<uint64_t>(sum.largest) > largest ? as<uint64_t>(sum.largest) : largest;
  }
  for (uint64_t i = blocks + thread_id(); i < head; i += thread_count()) job.dst[i] = 0;
  note_max(&job.result->extent[1], largest);
  note_max(&job.result->extent[2], most);
}

CC_HD void szp_sum_scan(const Job& job) {
  if (SzpTerms(job).sound()) szp_scan(job);
}

template <class T>
CC_HD void szp_sum_write(const Job& job) {
  const SzpTerms terms(job);
  if (!terms.sound() || szp_head(job) + job.result->extent[0] > job.nbytes) return;
  const uint64_t blocks = szp_blocks(job.n);
  for (uint64_t b = warp_id(); b < blocks; b += warp_count()) szp_put(job, b, SzpSum<T>(job, terms, b));
}

template <class T>
CC_HD void szp_sum_finish(const Job& job) {
  if (thread_id()) return;
  Result& result = *job.result;
  const SzpTerms terms(job);
  const uint64_t nbytes = szp_head(job) + result.extent[0];
  const double integers = (double(uint32_t(result.extent[2])) + 1) * terms.step;
  double largest = as<double>(result.extent[1]);
  if (integers > largest) largest = integers;
  result.nbytes = nbytes > job.nbytes ? int64_t(TOO_LARGE) : int64_t(nbytes);
  if (!terms.sound()) result.nbytes = BAD_STREAM;
  result.bound = largest * T::unit * (1 + 0x1p-9) + 2 * T::tiny;
}

}  // namespace cuda
}  // namespace CC_LEVEL
}  // namespace compcoll
