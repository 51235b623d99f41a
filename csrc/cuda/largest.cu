// The largest magnitude of an array, as in csrc/accumulate.h. The host computes rounding errors from it.
#include "real.cuh"

namespace compcoll {
namespace CC_LEVEL {
namespace cuda {

template <class T>
CC_HD void largest(const Job& job) {
  using Word = typename Choice<sizeof(typename T::Stored) == 8, uint64_t, uint32_t>::type;
  Word most = 0;
  for (uint64_t i = thread_id(); i < job.n; i += thread_count()) {
    const auto stored = reinterpret_cast<const typename T::Stored*>(job.src)[i];
    const Word magnitude = Word(stored & (T::infinity | (T::infinity - 1)));
    most = magnitude > most ? magnitude : most;
  }
  note_max(&job.result->extent[0], most);
}

}  // namespace cuda
}  // namespace CC_LEVEL
}  // namespace compcoll

CC_KERNEL(largest_f32, largest<F32>)
CC_KERNEL(largest_f64, largest<F64>)
CC_KERNEL(largest_f16, largest<F16>)
CC_KERNEL(largest_bf16, largest<BF16>)
