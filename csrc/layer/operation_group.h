// The calls of one operation of a client that holds no requests itself, such as torch's backend, with the
// comparison of what the ranks have called. They progress without Python, which is told of their end.
#pragma once
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "check.h"
#include "requests.h"

namespace compcoll {
namespace layer {

class OperationGroup : public engine::PendingTask, public std::enable_shared_from_this<OperationGroup> {
 public:
  explicit OperationGroup(uint64_t number) : own_number_{number} { poll_without_rest(); }

  // Begins to compare the operation, in words that all ranks have alike, before its calls; MPI's code.
  int compare(const std::shared_ptr<Comm>& comm, std::string text);
  // Adds the communicator's last call, by its request and a status, which stay where they are until the end.
  void add(Word* request, void* status, Comm* comm);
  // Hands the group to the progress thread; `take_ended` tells of its end.
  void submit();
  // Waits for the end, for so many seconds at most.
  engine::End wait(double seconds, const std::function<bool()>& interrupted);

  // True if the group has ended before its calls, since the ranks have called different things.
  bool differs() const { return check_ && check_->differs(); }
  bool is_late() const { return end() != engine::End::DONE; }  // it made no progress for too long
  // Calls of the ranks, if they differ, as far as other ranks tell theirs within so many seconds.
  std::string difference(double seconds);
  // The first error of MPI's own requests, as a code.
  int error() const;
  // One call: its outcome, or the operation of a small one; until the end, the engine's part of it.
  struct Note {
    std::shared_ptr<const Outcome> outcome;
    int small = LastCall::none;
    std::shared_ptr<PendingOperation> call;
  };
  std::vector<Note> notes() const;

 private:
  void finished() noexcept override;
  bool may_stall() override;
  void begin(bool wakes);
  void tell(bool* fact);

  std::mutex mutex_;
  std::list<uint64_t> own_number_;  // the client's, until the end
  std::shared_ptr<Check> check_;
  engine::TaskGroup::Parts plain_;  // MPI's requests, and the comparison
  std::vector<RequestRef> recorded_;  // MPI's
  std::vector<Note> notes_;
  bool is_left_ = false, is_over_ = false;
};

// The numbers of submitted groups that have ended: waits for the first one, for so many seconds at most, or
// until `wake_client`.
std::vector<uint64_t> take_ended(double seconds);
void wake_client();

}  // namespace layer
}  // namespace compcoll
