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

// A recorded call, or several that are alike.
struct Record {
  int name = 0, form = 0;
  uint64_t comm = 0;  // the number of its communicator
  int size = 0;  // of the communicator
  uint64_t nbytes = 0;  // of the buffer of a rank that sends; 0 if the arguments do not tell
  bool sends = false;  // true if this rank sends from that buffer
  uint32_t element = 0;  // code of the basic type, if places are recorded; 0 as in `Type`, or without a type
  double start = 0, returned = 0, end = 0;  // end: when the request was seen to be complete
  std::shared_ptr<const Outcome> outcome;  // null if the call was small, or has not ended
  bool small = false;
  int error = 0;  // MPI's code
  uint64_t site = 0;  // place and communicator of the call, from `Recorder::site`
  uint64_t calls = 1;  // number of calls, whose times are added up
};

// The sink of records; nothing is recorded before `begin`.
class Recorder {
 public:
  bool on() const { return on_.load(std::memory_order_relaxed); }
  // `site` gives a number for the place of a call, which is an address or in Python, on a communicator of
  // this number and name; null if places are not recorded. `full` is called to take the records.
  void begin(uint64_t (*site)(const void* caller, uint64_t comm, const char* name), void (*full)());
  void end() { on_ = false; }
  uint64_t site(const void* caller, uint64_t comm, const char* name) const {
    return site_(caller, comm, name);
  }
  bool has_sites() const { return site_ != nullptr; }
  void add(Record record);
  std::vector<Record> take();

 private:
  // Adds a small call to a recent record of calls alike. False if there is none, or if places are recorded.
  bool merge(const Record& record);
  static constexpr size_t most = 1024, looked_at = 16;
  std::atomic<bool> on_{false};
  uint64_t (*site_)(const void*, uint64_t, const char*) = nullptr;
  void (*full_)() = nullptr;
  std::mutex mutex_;
  std::vector<Record> records_;
};

extern Recorder recorder;

// True if calls are recorded; false in a thread that is within a call which Python records itself.
bool is_recorded();
void pause_recording(int by);  // adds 1 or -1 to this thread's pauses

// Records a call: `begin_record` comes before the call, and `end_record` after it, with MPI's code and the
// request. The record of a nonblocking call ends when its request is complete.
Record begin_record(const CollectiveCall& call);
void end_record(const CollectiveCall& call, Record record, int error, Word request);

// Stop and start recording; see `Recorder`.
void end_records();
void record_calls(uint64_t (*site)(const void* caller, uint64_t comm, const char* name), void (*full)());

}  // namespace layer
}  // namespace compcoll
