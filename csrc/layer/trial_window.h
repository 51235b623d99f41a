// How often calls of one kind were made, and how long they took.
#pragma once
#include <atomic>
#include <cstdint>

#include "engine/clock.h"

namespace compcoll {
namespace layer {

// A block of blocking calls of one kind, as all ranks count them: after `most` Python decides anew. The times
// and bytes are this rank's; collectives of one communicator follow each other, so that one thread at a time
// adds to them.
struct TrialWindow {
  TrialWindow(int64_t most, int64_t skip) : most(most), skip(skip) {}

  // Counts a call that starts now; false where the block is over.
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
  const int64_t most, skip;  // calls at its beginning that are not measured
  double since = 0;  // start of the first one that is
  double seconds = 0;  // in measured calls that have ended, and their bytes before and after compression
  uint64_t raw_nbytes = 0, wire_nbytes = 0;
};

}  // namespace layer
}  // namespace compcoll
