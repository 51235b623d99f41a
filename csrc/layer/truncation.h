// Receives of MPI's own that are smaller than any compressed message: where MPI truncates the first message
// of one, its chunks are received all the same, as their sender waits for that.
#pragma once
#include <memory>
#include <vector>

#include "errors.h"
#include "landing.h"
#include "streams.h"

namespace compcoll {
namespace layer {

// Receives the chunks of a message from a rank, of which nothing is written; null where there are none.
std::shared_ptr<engine::Run> drop_chunks(Comm& comm, int source, const Opening& opening);
// The same of several messages, until they are there.
void drop_truncated(Comm& comm, int source, const std::vector<Opening>& all);
// MPI has ended a receive: where it has truncated a message that was compressed, its chunks are received.
void look_for_truncation(Comm& comm, int error, const void* status);

// Remembers a receive of MPI's on a communicator whose messages may be compressed, and its buffer.
void remember_receive(Word request, const Comm& comm, const Range& range);
// True if a recent, incomplete receive of MPI's overlaps these bytes.
bool is_mpi_receiving(const Range& range);
// The request is no more, and another one may get its handle.
void forget_receive(Word request);
// Whether there was one.
extern COMPCOLL_INTERNAL std::atomic<bool> any_receives;

// What a wait or test of MPI's is given: requests of C, statuses, how many of these a call has at most, and
// where it says which requests they are of.
struct Given {
  int64_t n;
  Word requests, statuses;
  enum { one, any, all, some } kind;
  const int *indices = nullptr, *n_complete = nullptr;
};

// The requests of a wait that are receives to be looked at.
class Watched {
 public:
  explicit Watched(const Given& given);
  bool any() const { return !receives_.empty(); }
  // The statuses that MPI is to fill in: those given, or some of its own.
  Word statuses();
  void look(int error);

 private:
  struct Receive {
    int64_t index;
    Word request, comm;
  };
  // The status of a request; null where the call has none of it.
  const char* status_of(int64_t index) const;
  const Given given_;
  std::vector<Receive> receives_;
  std::vector<char> own_;
  const char* filled_ = nullptr;
};

// Calls `next` with the address of statuses, and looks at what comes back.
template <class Next>
int watch_receives(const Given& given, Next&& next) {
  if (!any_receives.load(std::memory_order_relaxed)) return next(given.statuses);
  return guarded(library().comm_world, [&] {
    Watched watched(given);
    if (!watched.any()) return next(given.statuses);
    const int error = next(watched.statuses());
    watched.look(error);
    return error;
  });
}

}  // namespace layer
}  // namespace compcoll
