#include "workers.h"

#include <algorithm>

#include "run.h"

namespace compcoll {
namespace engine {

Workers::Workers(int n, ThreadMain main) {
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

void Workers::add(std::shared_ptr<Run> run) {
  std::lock_guard<std::mutex> lock(mutex_);
  runs_.push_back(std::move(run));
  tickets_ += threads_.size();
  ready_.notify_all();
}

void Workers::remove(const std::shared_ptr<Run>& run) {
  std::lock_guard<std::mutex> lock(mutex_);
  runs_.erase(std::remove(runs_.begin(), runs_.end(), run), runs_.end());
  removed_++;
}

void Workers::wake() {
  std::lock_guard<std::mutex> lock(mutex_);
  tickets_++;
  ready_.notify_one();
}

void Workers::loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopped_) {
    if (!tickets_) {
      idle_++;
      ready_.wait(lock);
      idle_--;
      continue;
    }
    tickets_--;
    for (size_t i = 0; i < runs_.size();) {
      std::shared_ptr<Run> run = runs_[i];
      const uint64_t removed = removed_;
      lock.unlock();
      while (run->work()) {}
      run.reset();
      lock.lock();
      i = removed == removed_ ? i + 1 : 0;  // else others may have come to this place
    }
  }
}

}  // namespace engine
}  // namespace compcoll
