// Requests of calls that the engine carries out: generalized ones of those under way, and persistent ones,
// for which a receive stands that nobody but the layer can start.
#pragma once
#include <atomic>
#include <memory>
#include <vector>

#include "pending_operation.h"

namespace compcoll {
namespace layer {

// Starts a generalized request for what is under way; MPI's code.
int start_request(const std::shared_ptr<PendingOperation>& pending, Word* request);

void free_request(Word request);

// How many requests there are whose calls, or records, are the layer's.
extern COMPCOLL_INTERNAL std::atomic<int> n_requests;
inline bool any_requests() { return n_requests.load(std::memory_order_relaxed) != 0; }

// What is under way behind a request, null of others.
std::shared_ptr<PendingOperation> pending_of(Word request);

// Keeps the record of a call until its request is seen to be complete; and what is kept.
void keep_record(Word request, Record record);
std::vector<Record> take_open_records();
bool has_record(Word request);
// A call has ended, or its request is no more.
void close_record(Word request, std::shared_ptr<PendingOperation> pending, int error);

// A call that is prepared once, and started any number of times.
class Prepared {
 public:
  virtual ~Prepared() = default;
  // Starts the call; the request of its nonblocking form. MPI's code.
  virtual int start(Word* request) = 0;
  Word started = 0;  // the request of the call under way
};

// The prepared call of a request, null of others.
std::shared_ptr<Prepared> prepared_of(Word request);

// The handle that a program gets of a prepared call; MPI's code.
int keep(std::shared_ptr<Prepared> prepared, Word* handle);

// A communicator of this rank alone, on which nothing else of the program's is; 0 where MPI makes none.
Word own_comm();

// Before MPI ends: waits for calls under way, at most for so long, and lets go of what stands for prepared
// ones.
void end_requests(double seconds);

}  // namespace layer
}  // namespace compcoll
