// The requests that the layer knows, in one table by their handles.
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
  // Starts the call, with the request of its nonblocking form; MPI's code.
  virtual int start(Word* request) = 0;
  Word started = 0;  // request of the started call; 0 if there is none
};

// A generalized request of a call that the engine carries out, the stand-in of a persistent call, or a
// request of MPI's whose call is recorded. Only the record changes, under the table's lock.
struct RequestEntry {
  Word handle = 0;
  std::shared_ptr<PendingOperation> operation;
  std::shared_ptr<PersistentOperation> persistent;
  std::optional<Record> record;  // until the program has seen the end of the call
};
using RequestRef = std::shared_ptr<RequestEntry>;

// Number of requests in the table.
extern COMPCOLL_INTERNAL std::atomic<int> n_requests;
inline bool any_requests() { return n_requests.load(std::memory_order_relaxed) != 0; }

// Entry of a request, and its pending operation; null if there is none.
RequestRef find_request(Word handle);
std::shared_ptr<PendingOperation> pending_of(Word handle);

// A request of an array. For a stand-in, `handle` and `entry` are those of the started call; MPI gets this
// handle.
struct KnownRequest {
  size_t index;
  Word handle;
  RequestRef entry;  // null if MPI carries out the started call
  std::shared_ptr<PersistentOperation> persistent;  // the persistent call that has started it, if any
  bool is_complete;
};
// The known requests of an array, except persistent ones that are not started.
std::vector<KnownRequest> find_requests(const char* array, size_t n);

// Starts a generalized request for a pending operation; MPI's code.
int start_request(const std::shared_ptr<PendingOperation>& operation, Word* request);

void free_request(Word request);

// Attaches a call's record to its request, until that is seen to be complete. `take_open_records` takes all
// attached records.
void attach_record(Word request, Record record);
std::vector<Record> take_open_records();
// Ends the record of a call that has ended, or whose request is gone.
void complete_record(const RequestRef& entry, int error, std::shared_ptr<const Outcome> outcome = nullptr);

// Registers a prepared call, with the handle that the program gets; MPI's code.
int register_persistent(std::shared_ptr<PersistentOperation> prepared, Word* handle);

// The private communicator of this rank alone; 0 if MPI cannot make one, with its error code in `error`.
Word self_comm(int* error = nullptr);

// Before MPI ends: waits at most `seconds` for pending operations, and releases the stand-ins of persistent
// calls.
void end_requests(double seconds);

}  // namespace layer
}  // namespace compcoll
