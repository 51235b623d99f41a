#include "drive.h"

#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <utility>

#include "clock.h"

namespace compcoll {
namespace engine {
namespace {

// A sleep between two polls lasts a part of the time waited so far. `part` with its limit is for messages
// that follow each other closely on a busy network, `late_part` with its limit for ranks that are late; the
// longer of the two sleeps is taken.
constexpr double part = 1.0 / 16, limit_of_part = 1e-4, late_part = 1.0 / 64, limit_of_late_part = 1e-3;
// The progress thread yields for a shorter time than callers, which have nothing else to do. On an
// oversubscribed node, a thread that keeps yielding in a long call takes core time from the ranks that
// compute.
constexpr double spinning_of_thread = 1e-4, spinning_of_caller = 1e-3, spinning_of_oversubscribed = 2e-5;
// The progress thread backs off while a waiter may exist: the program may be computing, and progresses its
// own tasks when it waits. The thread naps between two polls of short tasks that have not begun to move, and
// rests for less time between polls of others. After the last task it lingers before it sleeps, because
// waking it takes a caller longer than starting a call. When woken, it lets the caller return first.
constexpr double nap = 1e-3, least_rest = 5e-5, lingering = 1e-2, returning = 5e-5;
// Longest time between two polls of devices.
constexpr double device_seconds = 1e-5;
// Time between two calls of `interrupted`, each of which takes the interpreter's lock.
constexpr double asking = 0.05;

// Early ends of a wait: time limit and interrupt.
class Ending {
 public:
  Ending(double limit, const std::function<bool()>& interrupted)
      : interrupted_(interrupted), asked_(now()), until_(asked_ + limit) {}
  // DONE: the wait goes on.
  End look() {
    double time = now();
    if (time > until_) return End::LATER;
    if (time - asked_ < asking) return End::DONE;
    asked_ = time;
    return interrupted_() ? End::INTERRUPTED : End::DONE;
  }

 private:
  const std::function<bool()>& interrupted_;
  double asked_;
  const double until_;
};

bool all_done(const std::vector<Task*>& tasks) {
  return std::all_of(tasks.begin(), tasks.end(), [](Task* task) { return task->done(); });
}

}  // namespace

double Backoff::pause() {
  double time = now();
  if (!since_) since_ = time;
  waited_ = time - since_;
  if (waited_ < spinning_) return 0;
  return std::max(std::min(waited_ * part, limit_of_part), std::min(waited_ * late_part, limit_of_late_part));
}

End drive(const std::vector<Task*>& tasks, double limit, double stall_seconds, Progress& progress,
          const std::function<bool()>& interrupted, std::function<void()> tell_long_wait) {
  auto is_long = [](Task* task) { return task->is_long(); };
  Backoff backoff(stall_seconds, progress.spinning(std::any_of(tasks.begin(), tasks.end(), is_long)));
  Ending ending(limit, interrupted);
  double began = 0;
  while (!all_done(tasks)) {
    bool moved = false;
    for (Task* task : tasks) {
      if (task->broken()) return End::BROKEN;
      moved |= task->step();
    }
    if (moved || progress.step_alone()) {
      if (began) tasks[0]->waited(now() - began);
      began = 0;
      backoff.moved();
      continue;
    }
    if (!began) began = now();
    double pause = backoff.pause();
    if (backoff.is_over()) return End::TIMEOUT;
    if (tell_long_wait && backoff.waited() > progress.notice_seconds())
      std::exchange(tell_long_wait, nullptr)();
    if (pause) tasks[0]->rest(pause);
    else sched_yield();
    if (End end = ending.look(); end != End::DONE) return end;
  }
  return End::DONE;
}

PendingTask::PendingTask() : rest_(nap) {}

bool PendingTask::step(bool waits) {
  std::unique_lock<std::mutex> alone(stepping_, std::defer_lock);
  if (waits) alone.lock();
  else if (!alone.try_lock()) return false;
  if (ended_) return false;
  bool moved = false, done = false, broken = false;
  try {
    moved = task_->step(), done = task_->done(), broken = task_->broken();
  } catch (...) { broken = true; }  // most likely out of memory
  if (moved) backoff_.moved();
  else backoff_.pause();
  if (moved && rest_ > least_rest) rest_ = least_rest;
  if (!done && !broken && !(backoff_.is_over() && may_stall())) return moved;
  end_with(done ? End::DONE : broken ? End::BROKEN : End::TIMEOUT);
  return true;
}

void PendingTask::note_long_wait() {
  std::lock_guard<std::mutex> alone(stepping_);
  if (!ended_) tell_long_wait();
}

void PendingTask::note_wait(double seconds) {
  std::lock_guard<std::mutex> alone(stepping_);
  task_->waited(seconds);
}

void PendingTask::end_with(End end) noexcept {
  end_ = end;
  finished();
  ended_ = true;
}

void Progress::add(std::shared_ptr<PendingTask> pending, std::shared_ptr<Task> task, bool wakes) {
  pending->task_ = std::move(task);
  pending->backoff_ = Backoff(stall_seconds_, 0);
  if (pending->rest_ && pending->is_long()) pending->rest_ = least_rest;
  std::unique_lock<std::mutex> lock(mutex_);
  pending_.push_back(pending);
  pending->submitted_ = true;
  start_locked();
  hurried_ |= wakes && pending->rest() < nap;
  const bool wake = wakes && (asleep_ || hurried_);
  lock.unlock();
  if (wake) changed_.notify_one();
}

bool Progress::start() {
  std::lock_guard<std::mutex> lock(mutex_);
  return start_locked();
}

// Requires the lock. If no thread can be started, waits and tests progress the tasks.
bool Progress::start_locked() {
  if (threaded_ && !running_ && !stopped_) running_ = start_thread(main_, [this] { loop(); }, &thread_);
  return running_;
}

// The last pending task before `*place`, which moves to it; null if there is none. Walking from the end to
// the front misses no task: tasks that end meanwhile are removed, and the others move towards the front.
std::shared_ptr<PendingTask> Progress::before(size_t* place) {
  std::lock_guard<std::mutex> lock(mutex_);
  *place = std::min(*place, pending_.size());
  return *place ? pending_[--*place] : nullptr;
}

bool Progress::step_some(const bool* with_waiters) {
  bool moved = false;
  size_t place = all_of_them;
  while (const auto pending = before(&place))
    if (!with_waiters || pending->has_waiters() == *with_waiters) moved |= pending->step();
  if (moved) drop_ended();
  return moved;
}

void Progress::step_all() {
  size_t place = all_of_them;
  while (const auto pending = before(&place)) pending->step(true);
  drop_ended();
}

End Progress::wait(const PendingTasks& waited, const std::function<bool()>& reached, double limit,
                   const std::function<bool()>& interrupted) {
  const bool with_waiters = true;
  const Attendance attendance(*this, waited);
  Backoff backoff(limit, spinning(has_long_with_waiters()));
  Ending ending(limit, interrupted);
  End end = End::DONE;
  bool has_told = false;
  double idle = 0;
  const auto first =
      std::find_if(waited.begin(), waited.end(), [](auto* pending) { return !pending->ended(); });
  while (end == End::DONE && !reached()) {
    if (step_some(running_ ? &with_waiters : nullptr)) {
      idle += backoff.waited();
      backoff.moved();
    } else {
      double pause = backoff.pause();
      if (!has_told && backoff.waited() > notice_seconds_) {
        has_told = true;
        for (PendingTask* pending : waited) pending->note_long_wait();
      }
      if (pause) {
        std::lock_guard<std::mutex> lock(mutex_);
        if (is_on_device(with_waiters)) pause = std::min(pause, device_seconds);
      }
      if (pause) std::this_thread::sleep_for(std::chrono::duration<double>(pause));
      else sched_yield();
    }
    end = ending.look();
  }
  idle += backoff.waited();
  if (idle > 0 && first != waited.end()) (*first)->note_wait(idle);  // a mere look waits for no other thread
  return end;
}

double Progress::spinning(bool any_is_long) const {
  return oversubscribed_ && any_is_long ? spinning_of_oversubscribed : spinning_of_caller;
}

bool Progress::has_long_with_waiters() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::any_of(pending_.begin(), pending_.end(),
                     [](const auto& pending) { return pending->is_long() && pending->has_waiters(); });
}

// True if a device runs a task with waiters, or without, according to `with_waiters`. Requires the lock.
bool Progress::is_on_device(bool with_waiters) const {
  return std::any_of(pending_.begin(), pending_.end(), [with_waiters](const auto& pending) {
    return pending->is_on_device() && pending->has_waiters() == with_waiters;
  });
}

void Progress::add_waiters(const PendingTasks& waited, int n) {
  for (PendingTask* pending : waited) pending->add_waiters(n);
  if (n > 0) return;
  std::lock_guard<std::mutex> lock(mutex_);
  if (has_work()) changed_.notify_one();
}

// Shortest pause that a task without waiters allows the thread. Requires the lock.
double Progress::shortest_rest() const {
  double least = nap;
  for (const auto& pending : pending_)
    if (!pending->has_waiters()) least = std::min(least, pending->rest());
  return least;
}

// Drops each task without the lock: its destructor may free objects of MPI or Python.
void Progress::drop_ended() {
  for (;;) {
    std::shared_ptr<PendingTask> dropped;
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found =
        std::find_if(pending_.begin(), pending_.end(), [](const auto& pending) { return pending->ended(); });
    if (found == pending_.end()) return;
    dropped = std::move(*found);
    pending_.erase(found);
  }
}

// True if the thread has a task to progress. Requires the lock.
bool Progress::has_work() const {
  return std::any_of(pending_.begin(), pending_.end(),
                     [](const auto& pending) { return !pending->ended() && !pending->has_waiters(); });
}

void Progress::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
    changed_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void Progress::loop() {
  prctl(PR_SET_TIMERSLACK, 1000);  // nanoseconds; otherwise each nap lasts longer than requested
  const bool with_waiters = false;
  Backoff backoff(1e18, spinning_of_thread);
  double idle = now();  // since when
  for (;;) {
    bool moved = step_some(&with_waiters);
    std::unique_lock<std::mutex> lock(mutex_);
    if (moved) backoff.moved();
    if (has_work()) {
      idle = now();
    } else if (now() - idle > lingering) {
      asleep_ = true;
      changed_.wait(lock, [this] { return stopped_ || has_work(); });
      asleep_ = false;
      idle = now();
    }
    if (stopped_) return;
    if (moved) continue;
    double pause = std::max(backoff.pause(), shortest_rest());
    if (is_on_device(with_waiters)) pause = std::min(pause, device_seconds);
    if (!pause) {
      lock.unlock();
      sched_yield();
      continue;
    }
    auto roused = [this] { return stopped_ || hurried_; };
    bool hurried = changed_.wait_for(lock, std::chrono::duration<double>(pause), roused);
    hurried_ = false;
    if (!hurried || !shortest_rest()) continue;
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::duration<double>(returning));
  }
}

}  // namespace engine
}  // namespace compcoll
