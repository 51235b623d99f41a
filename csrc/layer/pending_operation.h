// What is under way: calls and messages that a program waits for, at once or by a request of MPI's.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "calls.h"

namespace compcoll {
namespace layer {

class PendingOperation : public engine::PendingTask, public std::enable_shared_from_this<PendingOperation> {
 public:
  PendingOperation(std::shared_ptr<Comm> comm, Name name, Form form)
      : comm(std::move(comm)), name(name), form(form) {}

  const std::shared_ptr<Comm> comm;
  const Name name;
  const Form form;

  // Waits for it; MPI's code.
  int wait();
  // Leaves it to the progress thread; the request is complete with it. MPI's code.
  int submit(Word* request);
  // Runs the body that begins the call. If it throws, the object is kept for good, since MPI may still write
  // to its buffers.
  template <class Begin>
  int beginning(Begin&& begin) {
    try {
      return begin();
    } catch (...) {
      lose();
      throw;
    }
  }
  // Waits, at most for so long, for the end of one that was left.
  void join(double seconds = 1e18);
  std::atomic<bool> released{false};  // the program has freed its request
  // The outcome for the program, once; MPI's code.
  int settle();
  // Of one that is settled.
  std::shared_ptr<const Outcome> outcome() const { return outcome_; }

  // What a status of its request says, when it has ended.
  virtual void tell(void* status) const;
  virtual void cancel() {}

 protected:
  using Tasks = std::vector<std::shared_ptr<engine::Task>>;
  virtual Tasks tasks() = 0;
  // Those of one that is left, as one.
  virtual std::shared_ptr<engine::Task> make_task();
  // All tasks are done, in the thread that has come to the end.
  virtual void finish() {}
  // The outcome of one whose tasks are done; MPI's code.
  virtual int conclude() = 0;
  // Why there is none; 0 where there is.
  virtual int problem() { return 0; }
  // The error of one that has ended before its time, which leaves the caller's memory alone from now on; 0
  // where there is none beside that.
  virtual int failure() { return 0; }
  // It has not ended as it should: MPI may still write to what it refers to.
  virtual void abandon();

  std::shared_ptr<const Outcome> outcome_;
  double end_seconds_ = 0;

 private:
  void finished() noexcept override;
  int leave(Word* request);
  void lose() noexcept;
  int outcome_of_end();

  std::shared_ptr<PendingOperation> abandoned_;  // itself, for good
  Word handle_ = 0;  // of its request
  std::mutex settling_;
  bool settled_ = false;
  int code_ = 0, finish_code_ = 0;
};

}  // namespace layer
}  // namespace compcoll
