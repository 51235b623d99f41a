#include "workers.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "run.h"

namespace compcoll {
namespace engine {
namespace {

// Minimum total time of a run's operations for which workers are woken, if they are kept off the caller's
// core and if they are not; and minimum average time of one operation.
constexpr double run_seconds = 2e-4, unplaced_run_seconds = 5e-4, op_seconds = 25e-6;

}  // namespace

Workers::Workers(int n, Help help, ThreadMain main)
    : help_(help), limit_(help == Help::FREE ? 0 : size_t(n)) {
  threads_.reserve(size_t(n));
  std::thread thread;
  while (int(threads_.size()) < n && start_thread(main, [this] { loop(); }, &thread))
    threads_.push_back(std::move(thread));
}

Workers::~Workers() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
  }
  ready_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool Workers::pays(double seconds, uint64_t n) {
  if (help_ == Help::ALWAYS) return true;
  const double least = std::max(placed_ ? run_seconds : unplaced_run_seconds, double(n) * op_seconds);
  if (!(seconds >= least)) return false;
  if (help_ == Help::NAMED) return true;
  const double most = double(threads_.size());
  limit_ = size_t(std::lround(std::min(free_cores_.look(awake_), most)));
  return limit_ > 0;
}

void Workers::add(std::shared_ptr<Run> run) {
  std::lock_guard<std::mutex> lock(mutex_);
  runs_.push_back(std::move(run));
}

void Workers::remove(const std::shared_ptr<Run>& run) {
  std::lock_guard<std::mutex> lock(mutex_);
  runs_.erase(std::remove(runs_.begin(), runs_.end(), run), runs_.end());
  removed_++;
}

void Workers::wake(size_t n) {
  n = std::min({n, limit_.load(), threads_.size()});
  if (awake_ >= n) return;
  leave_core();
  std::lock_guard<std::mutex> lock(mutex_);
  for (; awake_ < n; awake_++) {
    woken_++;
    ready_.notify_one();
  }
}

// Moves the threads off the calling thread's core.
void Workers::leave_core() {
  const int core = sched_getcpu();
  if (core == left_core_.exchange(core)) return;
  cpu_set_t cores;
  bool placed = core >= 0 && !sched_getaffinity(getpid(), sizeof cores, &cores);
  if (placed) CPU_CLR(size_t(core), &cores);
  placed = placed && CPU_COUNT(&cores);
  for (std::thread& thread : threads_)
    placed = placed && !pthread_setaffinity_np(thread.native_handle(), sizeof cores, &cores);
  placed_ = placed;
}

void Workers::loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopped_) {
    if (!woken_) {
      ready_.wait(lock);
      continue;
    }
    woken_--;
    for (size_t i = 0; i < runs_.size();) {
      std::shared_ptr<Run> run = runs_[i];
      const uint64_t removed = removed_;
      lock.unlock();
      while (run->work()) {}
      run.reset();
      lock.lock();
      i = removed == removed_ ? i + 1 : 0;  // otherwise other runs may have moved to this index
    }
    awake_--;
  }
}

}  // namespace engine
}  // namespace compcoll
