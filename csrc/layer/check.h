// COMPCOLL_CHECK=1: the ranks of a marked communicator compare each collective before it begins. A sum over
// hashes of their calls is zero where these go together; else, and where a rank does not come, they exchange
// what they called.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm.h"
#include "engine/task_group.h"

namespace compcoll {
namespace layer {

struct CollectiveCall;

// Whether calls are compared: where other ranks are waited for any seconds. Operations have names by their
// handles.
extern COMPCOLL_INTERNAL std::atomic<bool> checks;
void begin_checks(double seconds, std::vector<std::pair<Word, std::string>> operations);

// So many bytes of elements of a type, in words.
std::string amount(int64_t element, int64_t nbytes);

// The comparison of one call.
class Check : public std::enable_shared_from_this<Check> {
 public:
  // `text` is what all ranks have to have alike; `pairs` the type and bytes of what is sent to each rank,
  // then of what is received. MPI's code.
  static int begin(const std::shared_ptr<Comm>& comm, std::string text, std::vector<int64_t> pairs,
                   std::shared_ptr<Check>* made);
  // Waits for the other ranks; the code of an error where they do not come in time, or differ.
  int wait();
  // The same of one whose request is complete.
  int result();
  // True if the task is done, and has told that the ranks differ.
  bool differs() const { return task_ && task_->done() && sum_; }
  // What the ranks have called, where that differs: told within so many seconds.
  std::string difference(double seconds);
  // The comparison as a task.
  std::shared_ptr<engine::Task> task();

 private:
  std::vector<int> exchange(double seconds, std::vector<std::string>* texts,
                            std::vector<std::vector<int64_t>>* pairs);
  std::shared_ptr<Comm> comm_;
  std::string text_;
  std::vector<int64_t> pairs_;
  int64_t number_ = 0;
  uint64_t given_ = 0, sum_ = 0;
  Word request_ = 0;
  std::shared_ptr<engine::Task> task_;
  alignas(8) char status_[64];
};

// Calls that are over as soon as the ranks are known to differ, where they are compared.
class ComparedTasks : public engine::TaskGroup {
 public:
  ComparedTasks(Parts parts, std::shared_ptr<Check> check)
      : TaskGroup(std::move(parts)), check_(std::move(check)) {}
  bool done() override { return (check_ && check_->differs()) || TaskGroup::done(); }

 private:
  const std::shared_ptr<Check> check_;
};

// Begins the comparison of a call; MPI's code.
int check(const CollectiveCall& call, std::shared_ptr<Check>* made);

// Compares a call of this name and these arguments that all ranks have alike, and waits; MPI's code.
int check_named(Word comm, const char* text);

}  // namespace layer
}  // namespace compcoll
