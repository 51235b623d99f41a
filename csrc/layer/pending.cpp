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
  // For good, with the private communicator: what nobody receives must not meet a later one's messages.
  static auto& all = *new std::vector<std::pair<std::shared_ptr<Pending>, std::shared_ptr<PrivateComm>>>;
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  all.emplace_back(shared_from_this(), comm->frames);
}

std::shared_ptr<engine::Task> Pending::task() {
  Tasks all = tasks();
  return all.size() == 1 ? all[0] : std::make_shared<engine::TaskGroup>(std::move(all));
}

void Pending::note_end(engine::End end) {
  end_ = end;
  end_seconds_ = engine::now();
  if (end == engine::End::DONE) finish();
  ended_ = true;
}

int Pending::wait() {
  const Tasks all = tasks();
  {
    Unlocked unlocked;
    note_end(the_engine().wait(all, std::numeric_limits<double>::infinity(), never_interrupted));
  }
  return settle();
}

int Pending::submit(Word* request) {
  completion_ = std::make_shared<engine::Completion>();
  auto self = shared_from_this();
  if (int error = start_request(self, request)) return error;
  const Word handle = *request;
  // The request is complete for MPI before anybody who waits here learns of it.
  left_ = the_engine().submit(
      task(),
      [self, handle](engine::End end) {
        self->note_end(end);
        complete(engine_library(), handle);
        self->completion_->reach();
        std::unique_lock<std::mutex> lock(self->telling_);
        const std::function<void()> told = std::move(self->told_);
        lock.unlock();
        if (told) told();
      },
      completion_);
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
  if (end_ != engine::End::DONE) {
    cancel();
    abandon();
    const int own = failure();
    comm->fail(std::string(text_of(name)) + (own ? " has ended with an error" : " was interrupted"));
    if (end_ == engine::End::TIMEOUT) return code_ = code_of(TIMEOUT, late_text());
    return code_ = own ? own : code_of(BROKEN, comm->why_broken());
  }
  code_ = problem();
  return code_ ? code_ : code_ = conclude();
}

void Pending::tell(void* status) const {
  status_set_elements.call(status, library().byte, 0);
  status_set_cancelled.call(status, 0);
}

}  // namespace layer
}  // namespace compcoll
