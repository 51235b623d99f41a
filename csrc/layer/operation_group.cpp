#include "operation_group.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <utility>

namespace compcoll {
namespace layer {
namespace {

// An engine call as a part of its group, which only waits for its end: the call progresses by itself.
class CallOfGroup : public engine::Task {
 public:
  explicit CallOfGroup(std::shared_ptr<PendingOperation> call) : call_(std::move(call)) {}
  bool step() override { return false; }
  bool done() override { return call_->ended(); }

 private:
  const std::shared_ptr<PendingOperation> call_;
};

struct Ended {
  std::mutex mutex;
  std::condition_variable changed;
  std::list<uint64_t> numbers;
  bool woken = false;
};

Ended& all_ended() {
  static auto one = new Ended;
  return *one;
}

}  // namespace

std::vector<uint64_t> take_ended(double seconds) {
  Ended& all = all_ended();
  std::unique_lock<std::mutex> lock(all.mutex);
  auto ready = [&all] { return all.woken || !all.numbers.empty(); };
  all.changed.wait_for(lock, std::chrono::duration<double>(seconds), ready);
  all.woken = false;
  std::vector<uint64_t> numbers(all.numbers.begin(), all.numbers.end());
  all.numbers.clear();
  return numbers;
}

void wake_client() {
  std::lock_guard<std::mutex> lock(all_ended().mutex);
  all_ended().woken = true;
  all_ended().changed.notify_all();
}

int OperationGroup::compare(const std::shared_ptr<Comm>& comm, std::string text) {
  if (int error = Check::begin(comm, std::move(text), {}, &check_)) return error;
  plain_.push_back(check_->task());
  return 0;
}

void OperationGroup::add(Word* request, void* status, Comm* comm) {
  const Word handle = library().handle_at(request);
  Note note;
  const RequestRef entry = find_request(handle);
  if (entry) note.call = entry->operation;
  if (!note.call) {
    note.outcome = comm->last.get(&note.small);
    if (handle != library().request_null)
      plain_.push_back(make_request(engine_library(), request, status, 0));
    if (entry) recorded_.push_back(entry);
  }
  notes_.push_back(std::move(note));
}

void OperationGroup::begin(bool wakes) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (submitted()) return;
  engine::TaskGroup::Parts parts = plain_;
  for (const Note& note : notes_) {
    if (!note.call) continue;
    note.call->poll_without_rest();
    parts.push_back(std::make_shared<CallOfGroup>(note.call));
  }
  the_engine().progress().add(shared_from_this(), std::make_shared<ComparedTasks>(parts, check_), wakes);
}

void OperationGroup::submit() {
  begin(true);
  record_fact(&is_left_);
}

engine::End OperationGroup::wait(double seconds, const std::function<bool()>& interrupted) {
  if (ended()) return engine::End::DONE;
  begin(false);
  engine::PendingTasks all = {this};
  for (const Note& note : notes_)
    if (note.call) all.push_back(note.call.get());
  return the_engine().progress().wait(all, [this] { return ended(); }, seconds, interrupted);
}

bool OperationGroup::tell_long_wait_of_calls() {
  bool any = false;
  for (const Note& note : notes_) {
    if (!note.call || note.call->ended()) continue;
    note.call->note_long_wait();
    any = true;
  }
  return any;
}

// Engine calls are given up by themselves.
bool OperationGroup::may_stall() {
  return std::any_of(plain_.begin(), plain_.end(), [](const auto& part) { return !part->done(); });
}

void OperationGroup::finished() noexcept {
  for (const RequestRef& entry : recorded_) complete_record(entry, error());
  record_fact(&is_over_);
}

// Sets one of two flags, and notifies the client when both are set. Allocates no memory.
void OperationGroup::record_fact(bool* fact) {
  Ended& all = all_ended();
  std::lock_guard<std::mutex> lock(all.mutex);
  *fact = true;
  if (!is_left_ || !is_over_) return;
  all.numbers.splice(all.numbers.end(), own_number_);
  all.changed.notify_one();
}

std::string OperationGroup::difference(double seconds) { return check_->difference(seconds); }

int OperationGroup::error() const {
  for (const auto& part : plain_)
    if (int code = error_of(*part)) return code;
  return 0;
}

std::vector<OperationGroup::Note> OperationGroup::notes() const {
  std::vector<Note> all = notes_;
  for (Note& note : all)
    if (const auto call = std::exchange(note.call, nullptr)) note.outcome = call->outcome();
  return all;
}

}  // namespace layer
}  // namespace compcoll
