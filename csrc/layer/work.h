// Calls under way: the schedules that the engine runs for one, and MPI's part of it.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "calls.h"
#include "check.h"

namespace compcoll {
namespace layer {

// Words of a call in which MPI has no part in some of the messages.
class Masked {
 public:
  Masked(const Call& call, const std::vector<uint8_t>& out, const std::vector<uint8_t>& into);
  const Word* words() const { return words_.data(); }
  Word* words() { return words_.data(); }

 private:
  std::vector<Word> words_;
  std::vector<char> counts_[2];
};

class Work : public std::enable_shared_from_this<Work> {
 public:
  Work(std::shared_ptr<Comm> comm, std::shared_ptr<const Entry> entry, Name name, Form form)
      : comm(std::move(comm)), entry(std::move(entry)), name(name), form(form) {}
  ~Work();

  const std::shared_ptr<Comm> comm;
  const std::shared_ptr<const Entry> entry;  // null of a call that is MPI's, on copies of a GPU's memory
  const Name name;
  const Form form;

  // Where frames travel.
  struct Lane {
    Word comm;
    int first, n;
    uint64_t key = 0;  // of the private communicator, where it is not that of all calls
  };
  // Starts the engine's part on buffers at these addresses, of which some may be those of GPUs; MPI's code.
  int begin(const Word bases[2], const bool devices[2], const Lane& lane,
            std::shared_ptr<engine::Bases> last = nullptr);
  // Has the other ranks get an error in place of this rank's values.
  void poison(int code);
  // Waits for a call that blocks; MPI's code.
  int wait();
  // Leaves the call to the engine; the request is complete with it. MPI's code.
  int leave(Word* request);
  // Waits, at most for so long, until a call has ended that was left.
  bool join(double seconds = 1e18);
  bool ended() const { return ended_; }

  // The outcome for the program, once; MPI's code.
  int settle();
  // Of a call that is settled.
  std::shared_ptr<const Outcome> outcome() const { return outcome_; }

  // The comparison with other ranks' calls.
  std::shared_ptr<Check> check;

  // MPI's part: its requests, as C has them.
  std::shared_ptr<Masked> masked;
  Word plain = 0;
  std::vector<Word*> plains;

  // Of a trial: which of its calls this is, and since when.
  int64_t turn = -1;
  double began = 0;
  // Things that end with it: a device's part, and what a persistent call is started from.
  std::vector<std::shared_ptr<void>> keep;
  // Called at the end, by the thread that waits: puts back what MPI wrote to other memory.
  std::function<int()> finish;

  const std::shared_ptr<engine::Completion>& completion() const { return completion_; }

 private:
  std::shared_ptr<engine::Task> task();
  void note_end(engine::End end);
  void drop_copies();

  std::vector<std::shared_ptr<engine::Run>> runs_;
  std::vector<KeptRef> devices_;  // Python's side of each on a GPU
  std::shared_ptr<engine::Bases> last_;  // what a persistent call carried last
  std::vector<std::pair<uint8_t*, uint64_t>> copies_;
  std::vector<std::vector<char>> statuses_;
  alignas(8) char compared_status_[64];
  std::vector<std::shared_ptr<engine::Task>> plain_tasks_;
  std::shared_ptr<engine::PendingTask> left_;
  std::shared_ptr<engine::Completion> completion_;
  int poisoned_ = 0;
  double end_seconds_ = 0;
  std::atomic<bool> ended_{false};
  engine::End end_ = engine::End::DONE;
  std::mutex settling_;
  bool settled_ = false;
  std::shared_ptr<const Outcome> outcome_;
  int code_ = 0;
};

}  // namespace layer
}  // namespace compcoll
