// Threads that encode and decode beside the threads that progress messages.
//
// Waking a thread costs the caller some microseconds, and the thread starts 10 to 30 later. So only runs with
// much to code get workers, and only while cores are free. The kernel starts a woken thread on the core of
// the waking thread and moves it after one to two milliseconds; workers are therefore kept off that core.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "free_cores.h"
#include "thread.h"

namespace compcoll {
namespace engine {

class Run;

// When workers help.
enum class Help : int {
  FREE,  // for long runs, as many workers as there are free cores
  NAMED,  // for long runs, all workers
  ALWAYS,  // for all runs, for tests
};

class Workers {
 public:
  // Starts `n` threads, or as many as the system provides.
  explicit Workers(int n, Help help = Help::FREE, ThreadMain main = run_loop);
  ~Workers();
  Workers(const Workers&) = delete;

  // True if helping a run pays: `n` operations that take `seconds` together, NaN if unknown.
  bool pays(double seconds, uint64_t n);
  // Offers a run's operations to workers, those of earlier runs first, until the run is removed.
  void add(std::shared_ptr<Run> run);
  void remove(const std::shared_ptr<Run>& run);
  // Wakes threads for `n` ready operations.
  void wake(size_t n);
  size_t size() const { return threads_.size(); }
  // Most workers that may help, as last decided.
  size_t limit() const { return limit_; }

 private:
  void loop();
  void leave_core();

  const Help help_;
  FreeCores free_cores_;
  std::atomic<size_t> limit_{0};
  std::atomic<size_t> awake_{0};  // threads that are working or have been woken
  std::atomic<int> left_core_{-1};  // core that the workers are kept off
  std::atomic<bool> placed_{true};  // false if the system does not allow moving threads

  std::mutex mutex_;
  std::condition_variable ready_;
  std::vector<std::shared_ptr<Run>> runs_;
  uint64_t removed_ = 0;
  size_t woken_ = 0;  // threads woken but not started yet
  bool stopped_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace engine
}  // namespace compcoll
