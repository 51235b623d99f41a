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

// How a call, or a part of it, was to be carried out.
struct Decision {
  std::string codec, algorithm, reason;
  bool lossless = true;
  bool writes_back = false;  // whether the owner of a block takes the values that others decode
};

// MPI carries a call out for this reason.
std::shared_ptr<const Decision> decision_by_mpi(std::string reason);

// A call that has ended.
struct Outcome {
  int name = n_names;
  std::shared_ptr<const Decision> decision;  // of a call that MPI served only its reason counts
  bool accelerated = false;
  engine::Stats stats;
  double seconds = 0;
  uint64_t base_nbytes = 0;
};

// Adds what a part of a call did.
void add(engine::Stats* sum, const engine::Stats& part);
// Raises a bound to another one, if that is larger or not known.
void raise_bound(double bound, double* to);

// The record of the last call of a communicator.
class LastCall {
 public:
  // A call that was small: `name` alone says all.
  void note_small(int name) { small_.store(name, std::memory_order_relaxed); }
  void note(std::shared_ptr<const Outcome> outcome);
  // Objects, of which Python keeps what there is to say.
  void note_objects() { small_.store(objects, std::memory_order_relaxed); }
  // The outcome, null where the last call was small, whose name goes to `small`, one of objects, or where
  // there was none.
  std::shared_ptr<const Outcome> get(int* small);

  static constexpr int other = -3, objects = -2, none = -1;

 private:
  std::atomic<int> small_{none};
  std::mutex mutex_;
  std::shared_ptr<const Outcome> outcome_;
};

// Sums of an operation over all communicators; of calls, over those that were freed.
struct Totals { std::atomic<uint64_t> calls{0}, accelerated{0}, raw_nbytes{0}, wire_nbytes{0}; };
extern Totals totals[n_names];

}  // namespace layer
}  // namespace compcoll
