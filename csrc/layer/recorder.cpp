#include "recorder.h"

#include <algorithm>
#include <utility>

#include "arguments.h"
#include "engine/clock.h"
#include "hook.h"
#include "requests.h"

namespace compcoll {
namespace layer {
namespace {

thread_local int quiet = 0;

// Bytes of one buffer of a call.
uint64_t nbytes_of_side(const CollectiveCall& call, SideName name, bool all) {
  const BufferArgument& side = call.buffers[name];
  if (!side.many || !all) return call.block(name, call.comm.rank).nbytes();
  uint64_t sum = 0;
  for (int i = 0; i < call.comm.size; i++) sum += call.block(name, i).nbytes();
  return sum;
}

// Bytes of the buffer that a sending rank gives a call.
uint64_t nbytes_of_buffer(const CollectiveCall& call) {
  const Operation& op = call.op;
  if (op.recv.buf < 0 || (op.neighbours && (op.send_many || op.listed))) return 0;
  if (!call.valid) return 0;
  if (op.one_buffer()) return nbytes_of_side(call, recv_side, true);
  const BufferArgument& send = call.buffers[send_side];
  const bool sends = send.given && !send.in_place;
  if (sends) return nbytes_of_side(call, send_side, true);
  const uint64_t received = nbytes_of_side(call, recv_side, op.send_many);
  const bool each = op.send_many && !call.buffers[recv_side].many;  // got a block of the root's buffer
  return each ? received * uint64_t(call.comm.size) : received;
}

}  // namespace

Recorder recorder;

void Recorder::begin(uint64_t (*site)(const void*, uint64_t, const char*), void (*full)()) {
  site_ = site, full_ = full;
  on_ = true;
}

bool Recorder::merge(const Record& record) {
  if (site_ || record.outcome || record.error) return false;
  const size_t first = records_.size() - std::min(records_.size(), looked_at);
  for (size_t i = records_.size(); i-- > first;) {
    Record& known = records_[i];
    if (known.name != record.name || known.form != record.form || known.comm != record.comm ||
        known.nbytes != record.nbytes || known.sends != record.sends || known.small != record.small ||
        known.outcome || known.error)
      continue;
    known.calls++;
    known.returned += record.returned - record.start, known.end += record.end - record.start;
    return true;
  }
  return false;
}

void Recorder::add(Record record) {
  bool is_full;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (merge(record)) return;
    try {
      records_.push_back(std::move(record));
    } catch (const std::bad_alloc&) { return; }  // the record is lost
    is_full = records_.size() >= most;
  }
  if (is_full) full_();
}

std::vector<Record> Recorder::take() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(records_, {});
}

bool is_recorded() { return recorder.on() && !quiet; }

void pause_recording(int by) { quiet += by; }

Record begin_record(const CollectiveCall& call) {
  Record record = {};
  const Operation& op = call.op;
  Comm& comm = call.comm;
  record.name = call.name, record.form = call.form, record.comm = comm.number(), record.size = comm.size;
  record.nbytes = nbytes_of_buffer(call);
  const bool by_root = op.root >= 0 && op.reduction < 0 && (op.one_buffer() || op.send_many);
  record.sends = comm.size > 1 && (!by_root || call.root() == comm.rank);
  if (recorder.has_sites()) {
    record.site =
        recorder.site(caller_beyond_fortran(call.caller), record.comm, name_of(comm.handle).c_str());
    if (const Type* type = call.decisive()) record.element = type->element;
  }
  record.start = engine::now();
  return record;
}

void end_record(const CollectiveCall& call, Record record, int error, Word request) {
  int small = LastCall::none;
  record.returned = record.end = engine::now();
  record.error = error;
  auto pending = pending_of(request);
  if (!pending && call.name < n_accelerated) record.outcome = call.comm.last.get(&small);
  record.small = small >= 0;
  if (call.form == nonblocking && !error && request && request != library().request_null)
    attach_record(request, std::move(record));
  else recorder.add(std::move(record));
}

void record_calls(uint64_t (*site)(const void*, uint64_t, const char*), void (*full)()) {
  recorder.begin(site, full);
  set_limits();
}

void end_records() {
  recorder.end();
  set_limits();
}

}  // namespace layer
}  // namespace compcoll
