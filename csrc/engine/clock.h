// Seconds of a monotonic clock.
#pragma once
#include <chrono>

namespace compcoll {
namespace engine {

inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace engine
}  // namespace compcoll
