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
    auto runs = runs_;
    lock.unlock();
    for (const auto& run : runs)
      while (run->work()) {}
    runs.clear();
    lock.lock();
  }
}

}  // namespace engine
}  // namespace compcoll
