#include "pending.h"

#include <limits>

#include "engine/clock.h"
#include "engine/task_group.h"
#include "requests.h"

namespace compcoll {
namespace layer {
namespace {

Own status_set_elements("PMPI_Status_set_elements"), status_set_cancelled("PMPI_Status_set_cancelled");

bool never_interrupted() { return false; }

}  // namespace

void Pending::abandon() {
  abandoned_ = shared_from_this();
  if (comm->frames) comm->frames->keep(comm->frames);
}

// Gives up a call that has begun: its tasks do not progress any more.
void Pending::lose() noexcept {
  abandon();
  comm->fail_without_text();
}

std::shared_ptr<engine::Task> Pending::task() {
  Tasks all = tasks();
  return all.size() == 1 ? all[0] : std::make_shared<engine::TaskGroup>(std::move(all));
}

void Pending::note_end(engine::End end) noexcept {
  end_ = end;
  end_seconds_ = engine::now();
  try {
    if (end == engine::End::DONE) finish();
  } catch (...) { finish_code_ = code_of_exception(); }
  ended_ = true;
}

int Pending::wait() {
  return beginning([&] {
    const Tasks all = tasks();
    {
      Unlocked unlocked;
      note_end(the_engine().wait(all, std::numeric_limits<double>::infinity(), never_interrupted));
    }
    return settle();
  });
}

int Pending::submit(Word* request) {
  return beginning([&] { return leave(request); });
}

int Pending::leave(Word* request) {
  completion_ = std::make_shared<engine::Completion>();
  auto self = shared_from_this();
  const std::shared_ptr<engine::Task> all = task();
  if (int error = start_request(self, request)) return error;
  const Word handle = *request;
  // The request is complete for MPI before anybody who waits here learns of it.
  auto finished = [self, handle](engine::End end) {
    self->note_end(end);
    complete(engine_library(), handle);
    self->completion_->reach();
    std::unique_lock<std::mutex> lock(self->telling_);
    const std::function<void()> told = std::move(self->told_);
    lock.unlock();
    if (told) told();
  };
  try {
    left_ = the_engine().submit(all, finished, completion_);
  } catch (...) {
    finished(engine::End::BROKEN);
    free_request(*request);
    throw;
  }
  return 0;
}

void Pending::tell_end(std::function<void()> told) {
  {
    std::lock_guard<std::mutex> lock(telling_);
    if (!completion_->reached()) {
      told_ = std::move(told);
      return;
    }
  }
  told();
}

bool Pending::join(double seconds) {
  if (ended_ || !left_) return true;
  Unlocked unlocked;
  the_engine().join(*left_, seconds, never_interrupted);
  return ended_;
}

int Pending::settle() {
  std::lock_guard<std::mutex> lock(settling_);
  if (settled_) return code_;
  settled_ = true;
  try {
    return code_ = outcome_of_end();
  } catch (...) { return code_ = code_of_exception(); }
}

int Pending::outcome_of_end() {
  if (end_ != engine::End::DONE) {
    cancel();
    abandon();
    const int own = failure();
    comm->fail(std::string(text_of(name)) + (own ? " has ended with an error" : " was interrupted"));
    if (end_ == engine::End::TIMEOUT) return code_of(TIMEOUT, late_text());
    return own ? own : code_of(BROKEN, comm->why_broken());
  }
  if (finish_code_) return finish_code_;
  const int code = problem();
  return code ? code : conclude();
}

void Pending::tell(void* status) const {
  status_set_elements.call(status, library().byte, 0);
  status_set_cancelled.call(status, 0);
}

}  // namespace layer
}  // namespace compcoll
