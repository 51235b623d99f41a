// Calls of programs that are traced or counted.
#pragma once
#include "arguments.h"

namespace compcoll {
namespace layer {

// Whether a call is recorded: not those of a thread that is within a call which Python records itself.
bool is_recorded();
void go_quiet(int by);  // begins that (1), or ends it (-1), in this thread

// A call that is carried out: `begin_record` comes before it, and `end_record` behind, with MPI's code and
// the request of a nonblocking one, with whose completion its record ends.
Record begin_record(const CollectiveCall& call);
void end_record(const CollectiveCall& call, Record record, int error, Word request);

// From now on calls are recorded; see `Recorder`.
void end_records();
void record_calls(uint64_t (*site)(const void* caller, uint64_t comm, const char* name), void (*full)());

}  // namespace layer
}  // namespace compcoll
