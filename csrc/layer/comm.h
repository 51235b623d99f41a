// Marked communicators, whose calls the layer serves. Their state is an attribute of the MPI communicator,
// which MPI never copies. A table of the layer finds it by the handle in 2 ns.
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

// More bytes than any message has: a limit that leaves all calls to MPI.
constexpr uint64_t never = uint64_t(1) << 62;

// Python's settings for a communicator and its descendants.
struct Settings {
  uint64_t min_nbytes = never;  // smallest message that may be compressed
  bool strict = false;  // a call that cannot run as the policy says is an error
  bool names = false;  // the policy looks at communicators' names
  bool threads = false;  // MPI may be called from several threads on all ranks
  bool devices = false;  // MPI accepts GPU memory
  // If all ranks have a GPU, the engine carries calls whose buffers on GPUs have at least so many bytes,
  // compressed or not. `alike`: one rank's memory tells where all ranks' memory is; else ranks ask each other
  // first.
  uint64_t plain_nbytes = never;
  bool alike = false;
};

// The origin of a communicator, for Python.
struct Origin {
  PythonRef python_ref;
  std::shared_ptr<const Origin> parent;  // null if Python knows it
  std::vector<int> ranks;  // its ranks, as the parent counts them
  int rank = 0, size = 1;
  uint64_t key = 0;  // equal on all ranks, and unique on each
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

  // Calls of fewer bytes are small, and go to MPI without any other test.
  std::atomic<uint64_t> limit{never};
  void set_limit();
  Settings settings;
  // Asks Python, once, to load the kernels for messages of a type on a GPU.
  void load_kernels(int gpu, uint32_t element);
  // True if messages may be compressed.
  bool compresses() const { return settings.threads && settings.min_nbytes != never && size > 1; }
  // Replaces the settings.
  void renew(const Settings& other) {
    settings = other;
    idle_ = false;
    set_limit();
    forget();
  }
  // Notes that no call is ever compressed here. Other ranks may not know this yet, so this rank still
  // reserves tags as they do, and skips everything else.
  void note_idle() {
    idle_ = true;
    set_limit();
  }

  // Adds an ended call to the sums and makes it the last call; `add_plain` does so for a call that MPI
  // carried out for a reason.
  void add(std::shared_ptr<const Outcome> outcome);
  void add_plain(int name, std::shared_ptr<const Decision> reason);
  LastCall last;
  std::atomic<uint64_t> accelerated{0};

  // Calls of each operation. A communicator has one collective call at a time, so that no thread adds at the
  // same time.
  std::atomic<uint64_t> calls[n_names] = {};
  void count(int name) {
    calls[name].store(calls[name].load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

  // The private communicator of frames, and the one in which duplicates reserve their tags.
  std::shared_ptr<PrivateComm> frames, shared;
  CallTags tags;
  PersistentTags persistent_tags;
  std::shared_ptr<Notices> notices;  // of messages
  std::atomic<uint64_t> n_made{0};  // number of duplicates
  std::atomic<int64_t> n_checked{0};  // number of compared calls

  // Plans of known calls: see plan.h.
  std::shared_ptr<const CallPlan> find_plan(const std::vector<int64_t>& key);
  void store_plan(std::vector<int64_t> key, std::shared_ptr<const CallPlan> plan);
  void forget();

  // Makes all later calls errors.
  void fail(const std::string& why);
  void fail_without_text() noexcept;  // needs no memory
  // Tells all ranks that this rank does not join their present and later calls on this communicator.
  void refuse() noexcept { refuse(frames, tags.refusal()); }
  void refuse(const std::shared_ptr<PrivateComm>& lane, int tag) noexcept;  // for a persistent call
  bool broken() const { return broken_.load(std::memory_order_acquire); }
  std::string why_broken();

  // True for operations that have told the user of a long wait.
  std::atomic<bool> has_told[n_names] = {};
  // True if the last large message that a GPU has received was uncompressed.
  std::atomic<bool> gets_plain{false};
  // True if MPI may carry out a nonblocking receive on this communicator.
  std::atomic<bool> receives_by_mpi{false};
  std::atomic<bool> gone{false};  // true if MPI has freed it; messages may still be pending
  int n_wrappers = 1;  // wrappers with these settings
  Word origin_handle = 0;  // the communicator that it is a duplicate of
  std::string settings_text;  // the settings as text

 private:
  struct Hash { size_t operator()(const std::vector<int64_t>& key) const; };
  std::mutex mutex_;
  std::unordered_map<std::vector<int64_t>, std::shared_ptr<const CallPlan>, Hash> plans_;
  std::atomic<bool> broken_{false}, idle_{false};
  std::atomic<uint64_t> gpus_[COMPLEX128 + 1] = {};  // bits of the GPUs that have kernels for a type
  std::string why_broken_;
};

// The most plans that a communicator caches.
extern std::atomic<size_t> most_calls;

// True if calls of any size are examined: calls are compared or recorded, or memory may be a device's.
extern std::atomic<bool> looks_at_all;
void look_at_all();
void forget_calls();  // forgets the plans of all communicators
void set_limits();  // updates the limits of all communicators

// A hash of two numbers in this order.
uint64_t mixed(uint64_t a, uint64_t b);

// The name of a communicator.
std::string name_of(Word handle);

// The marked communicator with this handle; null if it is not marked.
Comm* find(Word handle);
COMPCOLL_INLINE Comm* look_up(Word handle) {
  return comm_table.load(std::memory_order_acquire)->look_up(library().handle_of(handle));
}
std::shared_ptr<Comm> find_by(uint64_t number);
// The communicators with nonblocking receives that MPI may carry out.
std::vector<std::shared_ptr<Comm>> with_receives_by_mpi();

// Marks a communicator for Python; collective; MPI's error code.
int mark(Word handle, const Settings& settings, std::shared_ptr<const Origin> origin, Comm** marked);

// Makes a marked duplicate with the name and topology of a communicator; collective; MPI's error code. The
// duplicate is freed before the communicator.
int duplicate(Word handle, const Settings& settings, std::shared_ptr<const Origin> origin,
              std::string settings_text, Comm** made);

// A duplicate of a communicator with these settings and in no error state; null if there is none.
Comm* find_duplicate(Word handle, const std::string& settings_text);

// The numbers of all duplicates of a communicator.
std::vector<uint64_t> duplicates_of(Word handle);

// Marks a communicator that was made from a marked one; collective over it; MPI's error code.
int inherit(Comm& parent, Word made, bool same_ranks);

// Prepares the freeing of a communicator, marked or not; collective. True if other wrappers still use it, so
// that it stays.
bool before_free(Word handle);

// Receives the notices of completed messages before MPI ends; gives up after so many seconds.
void receive_notices(double seconds);

// Registers an mpi4py object that holds a communicator's handle at this address; `drop_object` ends that.
void note_object(Word handle, void* address);
void drop_object(void* address);

// The number of marked communicators.
size_t n_marked();

// The number of calls of an operation on all communicators, freed ones included.
uint64_t n_calls(int name);

}  // namespace layer
}  // namespace compcoll
