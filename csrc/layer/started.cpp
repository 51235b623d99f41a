#include "started.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <list>

#include "requests.h"

namespace compcoll {
namespace layer {
namespace {

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

int Started::compare(const std::shared_ptr<Comm>& comm, std::string text) {
  if (int error = Check::begin(comm, std::move(text), {}, &check_)) return error;
  plain_.push_back(check_->task());
  return 0;
}

void Started::add(Word* request, void* status, Comm* comm) {
  const Word handle = library().handle_at(request);
  Note note;
  if (auto pending = pending_of(handle)) {
    pending_.push_back(pending);
    places_.push_back(notes_.size());
  } else {
    note.outcome = comm->last.get(&note.small);
    if (handle != library().request_null)
      plain_.push_back(make_request(engine_library(), request, status, 0));
    if (has_record(handle)) recorded_.push_back(handle);
  }
  notes_.push_back(std::move(note));
}

void Started::submit() {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  if (is_left_ || ended_) return;
  if (!rest_) rest_ = std::make_shared<Compared>(plain_, check_);
  open_ = pending_.size() + 1;
  is_left_ = true;
  auto self = shared_from_this();
  for (const auto& pending : pending_) {
    pending->hurry();
    pending->tell_end([self] { self->part_ended(); });
  }
  left_ = the_engine().submit(rest_, [self](engine::End how) {
    if (how != engine::End::DONE) self->late_ = true;
    if (self->late_ || self->differs()) self->end();
    else self->part_ended();
  });
}

engine::End Started::wait(double seconds, const std::function<bool()>& interrupted) {
  std::shared_ptr<engine::Task> here;
  {
    std::lock_guard<std::recursive_mutex> lock(mutex_);
    if (ended_) return engine::End::DONE;
    if (!is_left_ && pending_.empty()) {
      if (!rest_) rest_ = std::make_shared<Compared>(plain_, check_);
      here = rest_;
    }
  }
  if (here) {
    const engine::End how = the_engine().wait({here}, seconds, interrupted);
    if (how == engine::End::TIMEOUT || how == engine::End::BROKEN) late_ = true;
    if (late_ || how == engine::End::DONE) end();
    return how;
  }
  submit();
  engine::Progress::Completions all = {left_->completion()};
  for (const auto& pending : pending_) all.push_back(pending->completion());
  return the_engine().progress().wait(all, [this] { return ended(); }, seconds, interrupted);
}

void Started::part_ended() {
  if (--open_ == 0) end();
}

void Started::end() {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  if (ended_.exchange(true)) return;
  for (Word handle : recorded_) close_record(handle, nullptr, error());
  if (!is_left_) return;
  Ended& all = all_ended();
  std::lock_guard<std::mutex> locked(all.mutex);
  all.numbers.splice(all.numbers.end(), own_number_);  // which needs no memory
  all.changed.notify_one();
}

std::string Started::difference(double seconds) { return check_->difference(seconds); }

int Started::error() const {
  for (const auto& part : plain_)
    if (int code = error_of(*part)) return code;
  return 0;
}

std::vector<Started::Note> Started::notes() const {
  std::vector<Note> all = notes_;
  for (size_t i = 0; i < pending_.size(); i++) all[places_[i]].outcome = pending_[i]->outcome();
  return all;
}

}  // namespace layer
}  // namespace compcoll
