// Private communicators, on which frames travel, and the tags of calls.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "mpi.h"

namespace compcoll {
namespace layer {

class PendingOperation;

// Makes a communicator of the same ranks for the library's own messages; collective; MPI's error code. Unlike a
// duplicate it has none of the program's attributes, whose callbacks would run, and none of its info hints.
int make_private(Word comm, Word* made);

// A private communicator, which carries frames, so that their tags never match a program's. Duplicates of a
// communicator share one, each with its own tags; it is freed with the last of them.
class PrivateComm {
 public:
  // Makes one for `comm`; collective; MPI's error code.
  static int make(Word comm, std::shared_ptr<PrivateComm>* made);
  ~PrivateComm();
  PrivateComm(const PrivateComm&) = delete;

  Word handle() const { return handle_; }
  // Reserves `n_tags` tags for another communicator; returns the first one, or a negative number if none are
  // left.
  int reserve_tags();
  static int n_tags();
  // Never frees the communicator: messages that nobody receives must not match receives on a later one.
  void keep(std::shared_ptr<PrivateComm> self) noexcept { self_ = std::move(self); }

 private:
  explicit PrivateComm(Word handle) : handle_(handle) {}
  const Word handle_;
  std::atomic<int> taken_{0};
  std::shared_ptr<PrivateComm> self_;
};

// Tags of a communicator's calls, reused in turn; a pending call that still has them ends first.
class CallTags {
 public:
  void begin(int first, int n);
  int check() const { return check_; }  // for the exchange of calls that do not match
  // Number of tags of each call, and the first of the fixed tags for calls that only some ranks count.
  int n() const { return n_; }
  int pairwise() const { return first_ + turns_ * n_; }
  // Tag of the refusals of ranks that give up.
  int refusal() const { return check_ - 2; }
  // Tags of messages, and the tag of their notices.
  int first_of_messages() const { return first_ + (turns_ + 1) * n_; }
  int n_of_messages() const { return refusal() - first_of_messages(); }
  int notice() const { return check_ - 1; }
  // Returns the first tag of a call; `pending` is the operation if the call may return before its end.
  int reserve(const std::shared_ptr<PendingOperation>& pending);
  void join();

 private:
  std::shared_ptr<PendingOperation> take_under_way(int turn);
  std::mutex mutex_;
  int first_ = 0, n_ = 1, turns_ = 1, check_ = 0;
  uint64_t calls_ = 0;
  std::unordered_map<int, std::weak_ptr<PendingOperation>> under_way_;  // by the turn
};

// Communicators and tags of persistent calls, which each rank may start in an order of its own.
class PersistentTags {
 public:
  struct TagRange {
    std::shared_ptr<PrivateComm> comm;
    std::shared_ptr<std::atomic<int>> used;  // ranges in use on the communicator
    int first, n, index;  // index: of the communicator
    int refusal() const { return first + n; }
    // Distinguishes frames in shared memory from those of other communicators.
    uint64_t key() const { return uint64_t(index + 1) * 0x9e3779b97f4a7c15; }
    TagRange() = default;
    TagRange(const TagRange&) = delete;
    ~TagRange() {
      if (used) --*used;
    }
  };
  // Reserves tags for one call; collective over `comm`; MPI's error code.
  int reserve(Word comm, std::shared_ptr<TagRange>* reserved);

 private:
  static constexpr int n_ranges = 64;
  struct Shared {
    std::shared_ptr<PrivateComm> comm;
    std::shared_ptr<std::atomic<int>> used;
    int given = 0, index = 0;
  };
  int find_free_tags(Word comm);  // sets `current_`; MPI's error code
  std::vector<std::unique_ptr<Shared>> all_;
  Shared* current_ = nullptr;
};

// Notes that MPI ends: private communicators are not freed any more.
void end_comms();

}  // namespace layer
}  // namespace compcoll
