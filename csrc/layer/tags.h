// Where frames travel: communicators that are the layer's own, and tags of calls.
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

// A private communicator, which carries frames, so that no tag ever meets a user's. Duplicates of a
// communicator share one, each with tags of its own; it is freed with the last of them.
class PrivateComm {
 public:
  // Collective over `comm`, of which it is a duplicate; null where MPI makes none.
  static std::shared_ptr<PrivateComm> make(Word comm);
  ~PrivateComm();
  PrivateComm(const PrivateComm&) = delete;

  Word handle() const { return handle_; }
  // The first of the tags of one more that shares it, and how many they are; negative where there is no room.
  int reserve_tags();
  static int n_tags();
  // Is never freed, given itself: messages that nobody receives must not meet those of a later communicator.
  void keep(std::shared_ptr<PrivateComm> self) noexcept { self_ = std::move(self); }

 private:
  explicit PrivateComm(Word handle) : handle_(handle) {}
  const Word handle_;
  std::atomic<int> taken_{0};
  std::shared_ptr<PrivateComm> self_;
};

// Tags of the calls of a communicator, used again in turn; calls under way that still have them end first.
class CallTags {
 public:
  void begin(int first, int n);
  int check() const { return check_; }  // of what ranks tell each other of calls that do not go together
  // Tags of each call, and the first ones of calls that only some ranks count, which are always the same.
  int n() const { return n_; }
  int pairwise() const { return first_ + turns_ * n_; }
  // By which ranks give up calls that do not go together.
  int refusal() const { return check_ - 2; }
  // Those of messages, and the one of their notices.
  int first_of_messages() const { return first_ + (turns_ + 1) * n_; }
  int n_of_messages() const { return refusal() - first_of_messages(); }
  int notice() const { return check_ - 1; }
  // The first tag of a call; `pending` may return before its end.
  int reserve(const std::shared_ptr<PendingOperation>& pending);
  void join();

 private:
  std::shared_ptr<PendingOperation> take_under_way(int turn);
  std::mutex mutex_;
  int first_ = 0, n_ = 1, turns_ = 1, check_ = 0;
  uint64_t calls_ = 0;
  std::unordered_map<int, std::weak_ptr<PendingOperation>> under_way_;  // by the turn
};

// A communicator and tags of calls that are prepared once and begun again and again, by each rank in an order
// of its own.
class PersistentTags {
 public:
  struct TagRange {
    std::shared_ptr<PrivateComm> comm;
    std::shared_ptr<std::atomic<int>> used;  // places in use of that communicator
    int first, n, index;  // the latter that of the communicator
    int refusal() const { return first + n; }
    // Tells its frames in shared memory from those of other communicators.
    uint64_t key() const { return uint64_t(index + 1) * 0x9e3779b97f4a7c15; }
    TagRange() = default;
    TagRange(const TagRange&) = delete;
    ~TagRange() {
      if (used) --*used;
    }
  };
  // Collective over `comm`; null where MPI makes no communicator.
  std::shared_ptr<TagRange> reserve(Word comm);

 private:
  static constexpr int n_ranges = 64;
  struct Shared {
    std::shared_ptr<PrivateComm> comm;
    std::shared_ptr<std::atomic<int>> used;
    int given = 0, index = 0;
  };
  Shared* with_free_tags(Word comm);
  std::vector<std::unique_ptr<Shared>> all_;
  Shared* current_ = nullptr;
};

// MPI ends, with which the private communicators do.
void end_comms();

}  // namespace layer
}  // namespace compcoll
