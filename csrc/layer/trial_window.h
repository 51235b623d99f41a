// Number and times of calls of one kind.
#pragma once
#include <atomic>
#include <cstdint>

#include "engine/clock.h"

namespace compcoll {
namespace layer {

// A window of blocking calls of one kind, which all ranks count alike: after `most` calls Python decides
// again. Times and bytes are this rank's. Only one thread at a time adds to them, as collectives of one
// communicator follow each other.
struct TrialWindow {
  TrialWindow(int64_t most, int64_t skip) : most(most), skip(skip) {}

  // Counts a call that starts now; false if the window is over.
  bool count_call() {
    const int64_t now = calls.load(std::memory_order_relaxed);
    if (now >= most) return false;
    if (now == skip) since = engine::now();
    calls.store(now + 1, std::memory_order_relaxed);
    return true;
  }

  // Adds a call that has ended: seconds, and bytes before and after compression.
  void add(double spent, uint64_t raw = 0, uint64_t wire = 0) {
    if (calls.load(std::memory_order_relaxed) <= skip) return;
    seconds += spent, raw_nbytes += raw, wire_nbytes += wire;
  }

  std::atomic<int64_t> calls{0};
  const int64_t most, skip;  // skip: calls at the beginning that are not measured
  double since = 0;  // start of the first measured call
  double seconds = 0;  // in measured calls that have ended, and their bytes before and after compression
  uint64_t raw_nbytes = 0, wire_nbytes = 0;
};

}  // namespace layer
}  // namespace compcoll
