// Pending operations: collectives and messages that a program waits for, at once or by an MPI request.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "comm.h"
#include "engine.h"
#include "errors.h"

namespace compcoll {
namespace layer {

class PendingOperation : public engine::PendingTask, public std::enable_shared_from_this<PendingOperation> {
 public:
  PendingOperation(std::shared_ptr<Comm> comm, Name name, Form form)
      : comm(std::move(comm)), name(name), form(form) {}

  const std::shared_ptr<Comm> comm;
  const Name name;
  const Form form;

  // Waits for the end; MPI's code.
  int wait();
  // Hands the operation to the progress thread, with a request that is complete when it ends; MPI's code.
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
  // Waits at most `seconds` for the end of a submitted operation.
  void join(double seconds = 1e18);
  std::atomic<bool> released{false};  // the program has freed its request
  // Concludes an operation that has ended, once; MPI's code.
  int conclude_once();
  // The outcome of a concluded operation.
  std::shared_ptr<const Outcome> outcome() const { return outcome_; }

  // Fills the status of the operation's request after the end.
  virtual void fill_status(void* status) const;
  virtual void cancel() {}
  // Says how long the call has waited, and for which ranks: "Allreduce of 9 float32 has waited 60 s for rank 3".
  std::string wait_text(const std::string& time) const;

 protected:
  // The call in words.
  virtual std::string text() const = 0;
  virtual engine::AwaitedRanks awaited() const { return {}; }
  // True if this rank tells the user that the call waits for these ranks: in a large communicator only some
  // ranks do.
  virtual bool tells(const engine::AwaitedRanks&) const { return true; }
  void tell_long_wait() noexcept override;
  using Tasks = std::vector<std::shared_ptr<engine::Task>>;
  virtual Tasks tasks() = 0;
  // The tasks of a submitted operation, as one task.
  virtual std::shared_ptr<engine::Task> make_task();
  // Called when all tasks are done, by the thread that completed them.
  virtual void finish() {}
  // Makes the outcome of an operation whose tasks are done; MPI's code.
  virtual int conclude() = 0;
  // The code of an error that leaves no outcome, or 0.
  virtual int problem() { return 0; }
  // The code of the error that has ended the operation early, or 0. The operation does not access the
  // caller's memory any more.
  virtual int failure() { return 0; }
  // Keeps an operation that did not end properly for good: MPI may still write to its memory.
  virtual void abandon();

  std::shared_ptr<const Outcome> outcome_;
  double end_seconds_ = 0;

 private:
  void finished() noexcept override;
  int hand_over(Word* request);
  void lose() noexcept;
  int outcome_of_end();

  std::shared_ptr<PendingOperation> abandoned_;  // the object itself, kept for good
  Word handle_ = 0;  // of the request
  std::mutex concluding_;
  bool concluded_ = false;
  int code_ = 0, finish_code_ = 0;
};

}  // namespace layer
}  // namespace compcoll
