// Threads that encode and decode beside those that drive the messages.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "thread.h"

namespace compcoll {
namespace engine {

class Run;

class Workers {
 public:
  // Starts `n` threads, or as many of them as the system has.
  explicit Workers(int n, ThreadMain main = run_loop);
  ~Workers();
  Workers(const Workers&) = delete;

  // Work for a run, earlier ones first, until it is removed.
  void add(std::shared_ptr<Run> run);
  void remove(const std::shared_ptr<Run>& run);
  // An operation has become ready.
  void wake();
  size_t idle() const { return idle_; }
  size_t size() const { return threads_.size(); }

 private:
  void loop();

  std::mutex mutex_;
  std::condition_variable ready_;
  std::vector<std::shared_ptr<Run>> runs_;
  std::atomic<size_t> idle_{0};
  uint64_t removed_ = 0;
  size_t tickets_ = 0;  // operations to look for, at least
  bool stopped_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace engine
}  // namespace compcoll
