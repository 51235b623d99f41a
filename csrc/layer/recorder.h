// Records of calls, in programs that are traced or counted.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "mpi.h"
#include "statistics.h"

namespace compcoll {
namespace layer {

struct CollectiveCall;

// A call in a program whose calls are recorded, or several that are alike.
struct Record {
  int name = 0, form = 0;
  uint64_t comm = 0;  // the number of its communicator
  int size = 0;  // of that
  uint64_t nbytes = 0;  // of the buffer that a rank which sends gives it; 0 where its arguments do not tell
  bool sends = false;  // whether that is one that this rank sends from
  double start = 0, returned = 0, end = 0;  // the last when its request was seen to be complete
  std::shared_ptr<const Outcome> outcome;  // null where it was small, or has not ended
  bool small = false;
  int error = 0;  // MPI's code
  uint64_t site = 0;  // where the program called, and on which communicator, as `Recorder::site` has it
  uint64_t calls = 1;  // whose times are added up
};

// The sink of records; nothing is recorded before `begin`.
class Recorder {
 public:
  bool on() const { return on_.load(std::memory_order_relaxed); }
  // `site` gives a number for where the program called, at an address or in its Python, on a communicator of
  // this number and name; null where nobody asks. `full` takes the records that there are.
  void begin(uint64_t (*site)(const void* caller, uint64_t comm, const char* name), void (*full)());
  void end() { on_ = false; }
  uint64_t site(const void* caller, uint64_t comm, const char* name) const {
    return site_(caller, comm, name);
  }
  bool has_sites() const { return site_ != nullptr; }
  void add(Record record);
  std::vector<Record> take();

 private:
  // Adds a small call to the record of those alike, where nobody asks for places; false where there is none.
  bool merge(const Record& record);
  static constexpr size_t most = 1024, looked_at = 16;
  std::atomic<bool> on_{false};
  uint64_t (*site_)(const void*, uint64_t, const char*) = nullptr;
  void (*full_)() = nullptr;
  std::mutex mutex_;
  std::vector<Record> records_;
};

extern Recorder recorder;

// Whether a call is recorded: not those of a thread that is within a call which Python records itself.
bool is_recorded();
void pause_recording(int by);  // begins that (1), or ends it (-1), in this thread

// A call that is carried out: `begin_record` comes before it, and `end_record` behind, with MPI's code and
// the request of a nonblocking one, with whose completion its record ends.
Record begin_record(const CollectiveCall& call);
void end_record(const CollectiveCall& call, Record record, int error, Word request);

// From now on calls are recorded; see `Recorder`.
void end_records();
void record_calls(uint64_t (*site)(const void* caller, uint64_t comm, const char* name), void (*full)());

}  // namespace layer
}  // namespace compcoll
