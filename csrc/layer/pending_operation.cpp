#include "pending_operation.h"

#include <cstdio>
#include <limits>

#include "check.h"
#include "engine/clock.h"
#include "engine/task_group.h"
#include "requests.h"

namespace compcoll {
namespace layer {
namespace {

MpiFunction status_set_elements("PMPI_Status_set_elements"),
    status_set_cancelled("PMPI_Status_set_cancelled");

bool never_interrupted() { return false; }

}  // namespace

void PendingOperation::abandon() {
  abandoned_ = shared_from_this();
  if (comm->frames) comm->frames->keep(comm->frames);
}

// Gives up a call that has begun: its tasks do not progress any more.
void PendingOperation::lose() noexcept {
  abandon();
  comm->fail_without_text();
}

std::shared_ptr<engine::Task> PendingOperation::make_task() {
  Tasks all = tasks();
  return all.size() == 1 ? all[0] : std::make_shared<engine::TaskGroup>(std::move(all));
}

// Completes MPI's request before any thread that waits here sees the end.
void PendingOperation::finished() noexcept {
  end_seconds_ = engine::now();
  try {
    the_engine().forget(task());
    if (end() == engine::End::DONE) finish();
  } catch (...) { finish_code_ = code_of_exception(); }
  if (handle_) complete(engine_library(), handle_);
}

int PendingOperation::wait() {
  return beginning([&] {
    const Tasks all = tasks();
    {
      ReleaseGil released_gil;
      end_with(the_engine().wait(all, std::numeric_limits<double>::infinity(), never_interrupted,
                                 [this] { tell_long_wait(); }));
    }
    return conclude_once();
  });
}

int PendingOperation::submit(Word* request) {
  return beginning([&] { return hand_over(request); });
}

int PendingOperation::hand_over(Word* request) {
  const std::shared_ptr<engine::Task> all = make_task();
  if (int error = start_request(shared_from_this(), request)) return error;
  handle_ = *request;
  try {
    the_engine().progress().add(shared_from_this(), all);
  } catch (...) {
    end_with(engine::End::BROKEN);
    free_request(*request);
    throw;
  }
  return 0;
}

void PendingOperation::join(double seconds) {
  if (ended() || !submitted()) return;
  ReleaseGil released_gil;
  the_engine().progress().wait({this}, [this] { return ended(); }, seconds, never_interrupted);
}

int PendingOperation::conclude_once() {
  std::lock_guard<std::mutex> lock(concluding_);
  if (concluded_) return code_;
  concluded_ = true;
  try {
    return code_ = outcome_of_end();
  } catch (...) { return code_ = code_of_exception(); }
}

int PendingOperation::outcome_of_end() {
  if (end() != engine::End::DONE) {
    const std::string waited = end() == engine::End::TIMEOUT ? wait_text(timeout_text()) : "";
    cancel();
    abandon();
    const int own = failure();
    comm->fail(std::string(text_of(name)) + (own ? " has ended with an error" : " was interrupted"));
    if (end() == engine::End::TIMEOUT)
      return code_of(TIMEOUT, waited + "; the communicator is in an error state");
    return own ? own : code_of(BROKEN, comm->why_broken());
  }
  if (finish_code_) return finish_code_;
  const int code = problem();
  return code ? code : conclude();
}

std::string PendingOperation::wait_text(const std::string& time) const {
  const engine::AwaitedRanks found = awaited();
  const std::string said = text() + " has waited " + time;
  if (found.ranks.empty()) return said;
  if (found.only_receive) return said + " for " + named(found.ranks) + " to receive";
  return said + (found.are_silent ? " for " : " for more from ") + named(found.ranks);
}

void PendingOperation::tell_long_wait() noexcept try {
  if (!tells(awaited()) || comm->has_told[name].exchange(true)) return;
  char time[40];
  snprintf(time, sizeof time, "%g s", the_engine().progress().notice_seconds());
  fprintf(stderr, "compcoll: rank %d of %d: %s; COMPCOLL_TIMEOUT=SECONDS makes it an error\n", comm->rank,
          comm->size, wait_text(time).c_str());
} catch (...) {}  // out of memory

void PendingOperation::fill_status(void* status) const {
  status_set_elements.call(status, library().byte, 0);
  status_set_cancelled.call(status, 0);
}

}  // namespace layer
}  // namespace compcoll
