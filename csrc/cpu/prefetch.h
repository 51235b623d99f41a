// Memory that is wanted next, fetched while the processor is busy with what is in its registers. Codecs
// work in phases of some kilobytes, and a phase that moves data would else wait for all of it.
#pragma once
#include "../config.h"

namespace compcoll {
namespace CC_LEVEL {

// A prefetch never faults, so the addresses may lie anywhere.
struct Ahead {
  uintptr_t read, write;
  uint32_t nbytes;  // of each, in one step

  CC_HD void fetch(uint32_t step) const {
    for (uint32_t k = step * nbytes, end = k + nbytes; k < end; k += 64) {
      __builtin_prefetch(reinterpret_cast<const void*>(read + k), 0, 2);
      __builtin_prefetch(reinterpret_cast<const void*>(write + k), 1, 2);
    }
  }
};

// What a loop comes to in 2 KiB, `nbytes` of it: the processor does not look that far ahead by itself where
// much is computed between one access and the next, nor across pages.
template <bool Write>
inline void fetch_ahead(const void* at, uint32_t nbytes) {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(at) + 2048;
  for (uint32_t k = 0; k < nbytes; k += 64)
    __builtin_prefetch(reinterpret_cast<const void*>(begin + k), Write, 3);
}

}  // namespace CC_LEVEL
}  // namespace compcoll
