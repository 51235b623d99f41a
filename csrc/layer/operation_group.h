// The calls of one operation of a client that holds no requests itself, as torch's backend, with the comparison
// of what the ranks have called. They progress without Python, which is told of their end.
#pragma once
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "check.h"
#include "pending_operation.h"

namespace compcoll {
namespace layer {

class OperationGroup : public engine::PendingTask, public std::enable_shared_from_this<OperationGroup> {
 public:
  explicit OperationGroup(uint64_t number) : own_number_{number} { poll_without_rest(); }

  // Begins to compare the operation, in words that all ranks have alike, before its calls; MPI's code.
  int compare(const std::shared_ptr<Comm>& comm, std::string text);
  // Takes over a request and a status, where they stand in memory that is kept until the end, and notes what
  // the communicator's last call says.
  void add(Word* request, void* status, Comm* comm);
  // Leaves it to the progress thread; `take_ended` tells of its end.
  void submit();
  // Waits so long at most. LATER where it goes on.
  engine::End wait(double seconds, const std::function<bool()>& interrupted);

  // It has ended before its calls, as the ranks have called different things.
  bool differs() const { return check_ && check_->differs(); }
  bool is_late() const { return end() != engine::End::DONE; }  // it made no progress for too long
  // What the ranks have called, where that differs: told within so many seconds.
  std::string difference(double seconds);
  // The first error of MPI's own requests, as a code.
  int error() const;
  // What became of each call; null where it was small, of the operation of this number.
  struct Note {
    std::shared_ptr<const Outcome> outcome;
    int small = Last::none;
    std::shared_ptr<PendingOperation> call;  // of the engine's
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
  std::vector<Word> recorded_;
  std::vector<Note> notes_;
  bool is_left_ = false, is_over_ = false;
};

// The numbers of those that were left and have ended, as soon as there are any, after so many seconds at most,
// or `wake_client`.
std::vector<uint64_t> take_ended(double seconds);
void wake_client();

}  // namespace layer
}  // namespace compcoll
