// What is under way: calls and messages that a program waits for, at once or by a request of MPI's.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "calls.h"

namespace compcoll {
namespace layer {

class Pending : public std::enable_shared_from_this<Pending> {
 public:
  Pending(std::shared_ptr<Comm> comm, Name name, Form form) : comm(std::move(comm)), name(name), form(form) {}
  virtual ~Pending() = default;
  Pending(const Pending&) = delete;

  const std::shared_ptr<Comm> comm;
  const Name name;
  const Form form;

  // Waits for it; MPI's code.
  int wait();
  // Leaves it to the engine; the request is complete with it. MPI's code.
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
  // Waits, at most for so long, until what was left has ended.
  bool join(double seconds = 1e18);
  bool ended() const { return ended_; }
  std::atomic<bool> released{false};  // the program has freed its request
  // The outcome for the program, once; MPI's code.
  int settle();
  // Of one that is settled.
  std::shared_ptr<const Outcome> outcome() const { return outcome_; }
  const std::shared_ptr<engine::Completion>& completion() const { return completion_; }
  // Has the progress thread not rest between two looks at what was left: its program waits elsewhere.
  void hurry() { left_->hurry(); }
  // Tells somebody of the end of what was left, at once where that is over.
  void tell_end(std::function<void()> told);

  // What a status of its request says, when it has ended.
  virtual void tell(void* status) const;
  virtual void cancel() {}

 protected:
  using Tasks = std::vector<std::shared_ptr<engine::Task>>;
  virtual Tasks tasks() = 0;
  // Those of one that is left, as one.
  virtual std::shared_ptr<engine::Task> task();
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
  void note_end(engine::End end) noexcept;
  int leave(Word* request);
  void lose() noexcept;
  int outcome_of_end();

  std::shared_ptr<Pending> abandoned_;  // itself, for good
  std::shared_ptr<engine::PendingTask> left_;
  std::shared_ptr<engine::Completion> completion_;
  std::atomic<bool> ended_{false};
  engine::End end_ = engine::End::DONE;
  std::mutex settling_, telling_;
  std::function<void()> told_;
  bool settled_ = false;
  int code_ = 0, finish_code_ = 0;
};

}  // namespace layer
}  // namespace compcoll
