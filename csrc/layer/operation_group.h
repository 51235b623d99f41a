// The calls of one operation of a client that holds no requests itself, such as torch's backend, and the
// comparison of the ranks' calls. They progress without Python, which is notified of their end.
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

  // Begins to compare `text`, which has to be the same on all ranks, before the calls; MPI's code.
  int compare(const std::shared_ptr<Comm>& comm, std::string text);
  // Adds the communicator's last call. `request` and `status` stay in place until the end.
  void add(Word* request, void* status, Comm* comm);
  // Hands the group to the progress thread; `take_ended` reports its end.
  void submit();
  // Waits at most `seconds` for the end.
  engine::End wait(double seconds, const std::function<bool()>& interrupted);

  // Lets the engine's calls that have not ended tell the user of a long wait; false if there are none.
  bool tell_long_wait_of_calls();

  // True if the ranks have called different operations, which ends the group before its calls.
  bool differs() const { return check_ && check_->differs(); }
  bool is_late() const { return end() != engine::End::DONE; }  // true if there was no progress for too long
  // The calls of the ranks if they differ, as far as other ranks report theirs within `seconds`.
  std::string difference(double seconds);
  // The first error of MPI's own requests, as a code.
  int error() const;
  // One call: its outcome, or the name of a small call; `call` is the engine's part, until the end.
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
  void record_fact(bool* fact);

  std::mutex mutex_;
  std::list<uint64_t> own_number_;  // the client's; moved to the list of ended groups
  std::shared_ptr<Check> check_;
  engine::TaskGroup::Parts plain_;  // MPI's requests, and the comparison
  std::vector<RequestRef> recorded_;  // of MPI's requests
  std::vector<Note> notes_;
  bool is_left_ = false, is_over_ = false;
};

// Numbers of the submitted groups that have ended. Waits at most `seconds` for the first one, or until
// `wake_client`.
std::vector<uint64_t> take_ended(double seconds);
void wake_client();

}  // namespace layer
}  // namespace compcoll
