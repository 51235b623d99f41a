// The absolute bound of szp from a relative one: finds the range of the finite values, then computes the step
// like `resolve_bound` in csrc/cpu/szp_values.h. The bound stays on the device, in the job's result.
#pragma once
#include "../szp.h"
#include "checksum.cuh"
#include "real.cuh"

namespace compcoll {
namespace CC_LEVEL {
namespace cuda {

// Maps bit patterns to the order of the numbers, and back; no finite number maps to 0 or ~0.
template <class Bits>
CC_HD Bits ordered(Bits bits) {
  constexpr Bits sign = ~(~Bits(0) >> 1);
  return bits & sign ? ~bits : bits | sign;
}
template <class Bits>
CC_HD Bits from_ordered(Bits key) {
  constexpr Bits sign = ~(~Bits(0) >> 1);
  return key & sign ? key ^ sign : ~key;
}

template <class T>
CC_HD void szp_settle(const Job& job) {
  using Sum = typename T::Sum;
  using Bits = typename Choice<sizeof(Sum) == 8, uint64_t, uint32_t>::type;
  Result& result = *job.result;
  double range = 0, some = 0;
  if (result.extent[1]) {
    some = T::widen(bit_cast<Sum>(from_ordered(Bits(result.extent[1]))));
    range = some * 0.5 - T::widen(bit_cast<Sum>(from_ordered(Bits(~Bits(result.extent[2]))))) * 0.5;
  }
  // Compensates for rounding upwards: the bound is never larger than requested.
  double bound = bit_cast<double>(job.params[1]) * (range > 0 ? range : 0) * 2 * (1 - 0x1p-51);
  if (bound > szp_bound_max) bound = szp_bound_max;
  double step = szp_steps * bound;
  if (!(range > 0)) step = some < 0 ? -some : some > 0 ? some : 1;
  if (step > 2 * szp_bound_max) step = 1;
  result.bound = bound;
  result.params[0] = bit_cast<uint64_t>(step), result.params[1] = job.params[1];
  if (!(step >= szp_bound_min)) result.nbytes = UNREPRESENTABLE;
}

// Largest and smallest finite value, the latter complemented; 0 if there is none.
template <class T>
CC_HD void szp_range(const Job& job) {
  using Sum = typename T::Sum;
  using Bits = typename Choice<sizeof(Sum) == 8, uint64_t, uint32_t>::type;
  Bits most = 0, least = 0;
  for (uint64_t i = thread_id(); i < job.n; i += thread_count()) {
    const auto stored = reinterpret_cast<const typename T::Stored*>(job.src)[i];
    if ((stored & T::infinity) == T::infinity) continue;
    const Bits key = ordered(bit_cast<Bits>(T::value(stored))), other = ~key;
    most = key > most ? key : most;
    least = other > least ? other : least;
  }
  note_max(&job.result->extent[1], most);
  note_max(&job.result->extent[2], least);
  run_by_last_block(job, [&] { szp_settle<T>(job); });
}

// The job with tolerance and step as its words, in place of the requested bound.
CC_HD Job szp_settled(Job job) {
  if (job.params[1]) {
    job.params[0] = bit_cast<uint64_t>(job.result->bound), job.params[1] = job.result->params[0];
  } else {
    job.params[1] = bit_cast<uint64_t>(szp_steps * bit_cast<double>(job.params[0]));
  }
  return job;
}

}  // namespace cuda
}  // namespace CC_LEVEL
}  // namespace compcoll
