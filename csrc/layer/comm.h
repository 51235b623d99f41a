// Marked communicators: those whose calls the layer serves. What one has hangs on its handle, as an attribute
// that MPI never copies, and is found by the handle in a table of the layer's own, which takes 2 ns.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "comm_table.h"
#include "mpi.h"
#include "python_thread.h"
#include "statistics.h"
#include "tags.h"

namespace compcoll {
namespace layer {

struct CallPlan;
class Notices;

// The most bytes of any message: what is below is MPI's.
constexpr uint64_t never = uint64_t(1) << 62;

// What Python has decided for a communicator, and those made from it.
struct Settings {
  uint64_t min_nbytes = never;  // smallest message that may be compressed
  bool strict = false;  // calls are errors that do not run as the policy says
  bool names = false;  // the policy looks at communicators' names
  bool threads = false;  // MPI may be called from several threads on all ranks
  bool devices = false;  // MPI takes memory of GPUs
  // Where all ranks have a GPU: whole buffers of so many bytes there are the engine's, compressed or not. Ranks
  // ask each other first, unless the memory of one tells that of all.
  uint64_t plain_nbytes = never;
  bool alike = false;
};

// Where a communicator comes from: what Python needs to know of it.
struct Origin {
  PythonRef python_ref;
  std::shared_ptr<const Origin> parent;  // null where Python knows it
  std::vector<int> ranks;  // its ranks, as the parent counts them
  int rank = 0, size = 1;
  uint64_t key = 0;  // the same on all ranks; no other communicator of any of them has it
};

class Comm : public std::enable_shared_from_this<Comm> {
 public:
  Comm(Word handle, int rank, int size, const Settings& settings, std::shared_ptr<const Origin> origin)
      : handle(handle), rank(rank), size(size), origin(std::move(origin)), settings(settings) {
    set_limit();
  }

  const Word handle;
  const int rank, size;
  const std::shared_ptr<const Origin> origin;
  uint64_t number() const { return origin->python_ref->number(); }

  // Calls of fewer bytes are small, and nothing else is to be looked at.
  std::atomic<uint64_t> limit{never};
  void set_limit();
  Settings settings;
  // Has Python load the kernels that messages of a type on a GPU may need, once.
  void load_kernels(int gpu, uint32_t element);
  // Whether messages may be compressed.
  bool compresses() const { return settings.threads && settings.min_nbytes != never && size > 1; }
  // Other settings from now on.
  void renew(const Settings& other) {
    settings = other;
    idle_ = false;
    set_limit();
    forget();
  }
  // This rank has learned that no call is ever compressed here, which others may never ask: its calls take
  // the short way from now on, but for what all ranks do in them, such as taking tags.
  void note_idle() {
    idle_ = true;
    set_limit();
  }

  // Adds a call that has ended to the sums, and reports it as the last one; or one of MPI's, with the reason.
  void add(std::shared_ptr<const Outcome> outcome);
  void add_plain(int name, std::shared_ptr<const Decision> reason);
  LastCall last;
  std::atomic<uint64_t> accelerated{0};

  // Calls of each operation, of which a communicator has one at a time.
  std::atomic<uint64_t> calls[n_names] = {};
  void count(int name) {
    calls[name].store(calls[name].load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

  // The communicator of frames, that where duplicates take their tags, and its own.
  std::shared_ptr<PrivateComm> frames, shared;
  CallTags tags;
  PersistentTags persistent_tags;
  std::shared_ptr<Notices> notices;  // of messages
  std::atomic<uint64_t> n_made{0};  // duplicates of it
  std::atomic<int64_t> n_checked{0};  // calls that were compared

  // Plans of calls that were seen before: see plan.h.
  std::shared_ptr<const CallPlan> find_plan(const std::vector<int64_t>& key);
  void store_plan(std::vector<int64_t> key, std::shared_ptr<const CallPlan> plan);
  void forget();

  // From now on all calls are errors.
  void fail(const std::string& why);
  void fail_without_text() noexcept;  // where memory may be missing
  // Tells all ranks that this rank takes no part in their present and later calls on this communicator.
  void refuse() noexcept { refuse(frames, tags.refusal()); }
  void refuse(const std::shared_ptr<PrivateComm>& lane, int tag) noexcept;  // in a persistent call
  bool broken() const { return broken_.load(std::memory_order_acquire); }
  std::string why_broken();

  // True if the last large message that a GPU has received came uncompressed.
  std::atomic<bool> gets_plain{false};
  // True if MPI may carry out a nonblocking receive of it.
  std::atomic<bool> receives_by_mpi{false};
  std::atomic<bool> gone{false};  // MPI has freed it: messages may still be under way
  int n_wrappers = 1;  // of the same settings
  Word origin_handle = 0;  // the communicator that Python made it of
  std::string settings_text;  // its settings, in words

 private:
  struct Hash { size_t operator()(const std::vector<int64_t>& key) const; };
  std::mutex mutex_;
  std::unordered_map<std::vector<int64_t>, std::shared_ptr<const CallPlan>, Hash> plans_;
  std::atomic<bool> broken_{false}, idle_{false};
  std::atomic<uint64_t> gpus_[COMPLEX128 + 1] = {};  // with kernels for a type, a bit each
  std::string why_broken_;
};

// Calls that a communicator remembers, at most.
extern std::atomic<size_t> most_calls;

// What takes the long way whatever its size: calls that are compared or recorded, and where memory may be a
// device's.
extern std::atomic<bool> looks_at_all;
void look_at_all();
void forget_calls();  // of all communicators, as they are to be decided on anew
void set_limits();  // of all communicators, where what they depend on has changed

// A number that depends on two others, and on their order.
uint64_t mixed(uint64_t a, uint64_t b);

// A communicator's name.
std::string name_of(Word handle);

// The marked communicator of a handle; null of others.
Comm* find(Word handle);
COMPCOLL_INLINE Comm* look_up(Word handle) {
  return comm_table.load(std::memory_order_acquire)->look_up(library().handle_of(handle));
}
std::shared_ptr<Comm> find_by(uint64_t number);
// The communicators with nonblocking receives that MPI may carry out.
std::vector<std::shared_ptr<Comm>> with_receives_by_mpi();

// Marks a communicator of Python's; collective. Null where MPI does not let it.
Comm* mark(Word handle, const Settings& settings, std::shared_ptr<const Origin> origin);

// Makes a marked duplicate of a communicator, with its name and topology, which is freed before it;
// collective. An error code of MPI's.
int duplicate(Word handle, const Settings& settings, std::shared_ptr<const Origin> origin,
              std::string settings_text, Comm** made);

// A duplicate of a communicator with these settings that is in no error state; null where there is none.
Comm* find_duplicate(Word handle, const std::string& settings_text);

// The numbers of all duplicates of a communicator.
std::vector<uint64_t> duplicates_of(Word handle);

// A communicator was made of a marked one; collective over it. MPI's error code.
int inherit(Comm& parent, Word made, bool same_ranks);

// Before a communicator is freed, marked or not; collective. True where others still use it, so that it
// stays.
bool before_free(Word handle);

// Receives the notices of completed messages before MPI ends; gives up after so many seconds.
void receive_notices(double seconds);

// An object of mpi4py's has the handle of a communicator at this address, until it is dropped.
void note_object(Word handle, void* address);
void drop_object(void* address);

// How many communicators are marked.
size_t n_marked();

// How many calls of an operation all of them have had, with those that were freed.
uint64_t n_calls(int name);

}  // namespace layer
}  // namespace compcoll
