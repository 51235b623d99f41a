// Prefetching memory while the processor computes in registers. Codecs work in phases of some kilobytes, and
// a phase that moves data would otherwise wait for all of it.
#pragma once
#include "../config.h"

namespace compcoll {
namespace CC_LEVEL {

// A prefetch never faults, so the addresses may be invalid.
struct Ahead {
  uintptr_t read, write;
  uint32_t nbytes;  // per step, of each address

  CC_HD void fetch(uint32_t step) const {
    for (uint32_t k = step * nbytes, end = k + nbytes; k < end; k += 64) {
      __builtin_prefetch(reinterpret_cast<const void*>(read + k), 0, 2);
      __builtin_prefetch(reinterpret_cast<const void*>(write + k), 1, 2);
    }
  }
};

// Prefetches `nbytes`, 2 KiB ahead of a loop. The hardware does not prefetch that far if much is computed
// between accesses, nor across pages.
template <bool Write>
inline void fetch_ahead(const void* at, uint32_t nbytes) {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(at) + 2048;
  for (uint32_t k = 0; k < nbytes; k += 64)
    __builtin_prefetch(reinterpret_cast<const void*>(begin + k), Write, 3);
}

#if defined(__AVX512BW__)
// A few pieces of memory of the same shape, slabs of 4 rows, that will be written soon. They have some
// kilobytes, for which the writes would otherwise wait.
class ExpectedRows {
 public:
  ExpectedRows(int rows, uint64_t row_nbytes, uint64_t slab_nbytes)
      : rows_(rows), row_nbytes_(row_nbytes), slab_nbytes_(slab_nbytes) {}

  bool full() const { return n_ == most; }
  void add(uintptr_t begin, uint32_t nbytes) { pieces_[n_++] = {begin, nbytes}; }

  // Prefetches row r, if there is one. In assembly, because the compiler drops calls of functions that only
  // prefetch.
  void operator()(int r) const {
    if (r >= rows_) return;
    const uint64_t row = r % 4 * row_nbytes_ + r / 4 * slab_nbytes_;
    for (int i = 0; i < n_; i++)
      for (uint32_t k = 0; k < pieces_[i].nbytes; k += 64)
        __asm__ volatile("prefetchw (%0)" : : "r"(pieces_[i].begin + row + k));
  }

 private:
  static constexpr int most = 4;
  struct Piece {
    uintptr_t begin;
    uint32_t nbytes;
  };
  int rows_;
  uint64_t row_nbytes_, slab_nbytes_;
  Piece pieces_[most];
  int n_ = 0;
};
#endif

}  // namespace CC_LEVEL
}  // namespace compcoll
