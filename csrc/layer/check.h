// COMPCOLL_CHECK=1: the ranks of a marked communicator compare each collective before it begins. The sum of a
// hash over the ranks is zero if their calls match. If it is not, or if a rank does not arrive, the ranks
// exchange descriptions of their calls.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm.h"
#include "engine/task_group.h"

namespace compcoll {
namespace layer {

struct Block;
struct CollectiveCall;

// True if calls are compared. `seconds`: how long a rank waits for the others. `operations`: names of MPI
// operations by handle.
extern COMPCOLL_INTERNAL std::atomic<bool> checks;
void begin_checks(double seconds, std::vector<std::pair<Word, std::string>> operations);

// Ranks in words, at most eight of them.
std::string named(const std::vector<int>& ranks);

// A number of bytes in words: elements of a type.
std::string amount(int64_t element, int64_t nbytes);

// A call in words: its name, amount of data, and root. `sent` and `received`: its blocks.
std::string text_of(const CollectiveCall& call, const std::vector<Block>& sent,
                    const std::vector<Block>& received);

// The comparison of one call.
class Check : public std::enable_shared_from_this<Check> {
 public:
  // `text` must be equal on all ranks. `pairs`: type and bytes of the message to each rank, then of the
  // message from each rank. MPI's code.
  static int begin(const std::shared_ptr<Comm>& comm, std::string text, std::vector<int64_t> pairs,
                   std::shared_ptr<Check>* made);
  // Waits for the other ranks; an error code if they do not arrive in time, or differ.
  int wait();
  // Like `wait()`, for a comparison whose request is complete.
  int result();
  // True if the task is done and the ranks differ.
  bool differs() const { return task_ && task_->done() && sum_; }
  // Descriptions of the ranks' calls if they differ, as far as ranks send them within so many seconds.
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

// Tasks that end as soon as a comparison finds that the ranks differ.
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

// Compares the name of a call without other arguments, and waits; MPI's code.
int check_named(Word comm, const char* text);

}  // namespace layer
}  // namespace compcoll
