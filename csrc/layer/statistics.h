// Statistics of calls: a communicator's last one, and sums over all calls of an operation.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/run.h"
#include "message_table.h"
#include "operations.h"

namespace compcoll {
namespace layer {

#define COMPCOLL_NAME(n, name, ...) name,
// Collectives that may be accelerated come first, and messages last.
enum Name {
  ACCELERATED(COMPCOLL_NAME) n_accelerated,
  before_others = n_accelerated - 1,
  OTHERS(COMPCOLL_NAME) n_operations,
  before_messages = n_operations - 1,
  MESSAGES(COMPCOLL_NAME, COMPCOLL_NAME, COMPCOLL_NAME) n_names
};
const char* text_of(int name);
enum Form { blocking, nonblocking, persistent, n_forms };
std::string text_of(Name collective, Form form);  // such as "Ibcast" or "Bcast_init"

// The decision on how to carry out a call, or a part of it.
struct Decision {
  std::string codec, algorithm, reason;
  bool lossless = true;
  bool writes_back = false;  // true if the owner of a block takes the values that others decode
};

// The decision to leave a call to MPI, for this reason.
std::shared_ptr<const Decision> decision_by_mpi(std::string reason);

// The outcome of a call.
struct Outcome {
  int name = n_names;
  std::shared_ptr<const Decision> decision;  // for a call that MPI served, only the reason counts
  bool accelerated = false;
  engine::Stats stats;
  double seconds = 0;
  uint64_t base_nbytes = 0;
};

// Adds the statistics of a part of a call.
void add(engine::Stats* sum, const engine::Stats& part);
// Raises the bound `to` if `bound` is larger, or NaN (unknown).
void raise_bound(double bound, double* to);

// The record of the last call of a communicator.
class LastCall {
 public:
  // Notes a small call, of which only the name is kept.
  void note_small(int name) { small_.store(name, std::memory_order_relaxed); }
  void note(std::shared_ptr<const Outcome> outcome);
  // Notes a call with objects, whose outcome Python keeps.
  void note_objects() { small_.store(objects, std::memory_order_relaxed); }
  // The outcome of the last call. Null if it was small, with its name in `small`, if it had objects, or if
  // there was none.
  std::shared_ptr<const Outcome> get(int* small);

  static constexpr int other = -3, objects = -2, none = -1;

 private:
  std::atomic<int> small_{none};
  std::mutex mutex_;
  std::shared_ptr<const Outcome> outcome_;
};

// Sums of an operation over all communicators; `calls` counts only communicators that were freed.
struct Totals { std::atomic<uint64_t> calls{0}, accelerated{0}, raw_nbytes{0}, wire_nbytes{0}; };
extern Totals totals[n_names];

}  // namespace layer
}  // namespace compcoll
