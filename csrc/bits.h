// Reinterprets the bits of one type as another, for lanes on the CPU and GPU.
#pragma once
#include "config.h"

namespace compcoll {
namespace CC_LEVEL {

template <class To, class From>
CC_HD To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "types of one size");
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

}  // namespace CC_LEVEL
}  // namespace compcoll
