// How often calls of one kind were made.
#pragma once
#include <atomic>
#include <cstdint>
#include <limits>
#include <vector>

namespace compcoll {
namespace layer {

// Calls of one kind, as all ranks count them, and the number after which their decision is renewed.
struct Count {
  explicit Count(int64_t most, bool timed) : most(most) {
    if (timed) seconds.assign(size_t(most), std::numeric_limits<double>::infinity());
  }
  std::atomic<int64_t> calls{0};
  const int64_t most;
  std::vector<double> seconds;  // of a timed one what each call took
};

}  // namespace layer
}  // namespace compcoll
