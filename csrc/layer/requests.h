// Requests of which the layer knows something, in one table by their handles.
#pragma once
#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "pending_operation.h"
#include "recorder.h"

namespace compcoll {
namespace layer {

// A call that is prepared once, and started any number of times.
class PersistentOperation {
 public:
  virtual ~PersistentOperation() = default;
  // Starts the call; the request of its nonblocking form. MPI's code.
  virtual int start(Word* request) = 0;
  Word started = 0;  // the request of the call under way
};

// A generalized request of a call that the engine carries out, the stand-in of a persistent call, or a request of
// MPI's whose call is recorded. Nothing but the record changes, with the table's lock.
struct RequestEntry {
  Word handle = 0;
  std::shared_ptr<PendingOperation> operation;
  std::shared_ptr<PersistentOperation> persistent;
  std::optional<Record> record;  // until the program has seen the end of the call
};
using RequestRef = std::shared_ptr<RequestEntry>;

// How many requests are in the table.
extern COMPCOLL_INTERNAL std::atomic<int> n_requests;
inline bool any_requests() { return n_requests.load(std::memory_order_relaxed) != 0; }

// Entry of a request, and the call under way behind it; null of others.
RequestRef find_request(Word handle);
std::shared_ptr<PendingOperation> pending_of(Word handle);

// A request of an array, with the entry of the call under way, whose handle MPI is given.
struct KnownRequest {
  size_t index;
  Word handle;
  RequestRef entry;  // null of a started call of MPI's
  std::shared_ptr<PersistentOperation> persistent;  // that has started it
  bool is_complete;
};
// The requests of an array of which something is known, but for persistent ones that are not started.
std::vector<KnownRequest> find_requests(const char* array, size_t n);

// Starts a generalized request for what is under way; MPI's code.
int start_request(const std::shared_ptr<PendingOperation>& operation, Word* request);

void free_request(Word request);

// Keeps the record of a call until its request is seen to be complete; and what is kept.
void attach_record(Word request, Record record);
std::vector<Record> take_open_records();
// A call has ended, or its request is no more.
void complete_record(const RequestRef& entry, int error, std::shared_ptr<const Outcome> outcome = nullptr);

// The handle that a program gets of a prepared call; MPI's code.
int register_persistent(std::shared_ptr<PersistentOperation> prepared, Word* handle);

// A communicator of this rank alone, on which nothing else of the program's is; 0 where MPI makes none.
Word self_comm();

// Before MPI ends: waits for calls under way, at most for so long, and lets go of what stands for prepared
// ones.
void end_requests(double seconds);

}  // namespace layer
}  // namespace compcoll
