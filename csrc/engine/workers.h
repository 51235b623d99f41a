// Threads that encode and decode beside those that drive the messages.
//
// To wake a thread costs its caller some microseconds, and the thread begins 10 to 30 later. So only a run with
// much to code has workers, and only while cores are free. The kernel begins a woken thread on the core of the
// thread that wakes it, and moves it after one to two milliseconds: workers are kept off that core.
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
  FREE,  // with a run that takes long, as many as there are free cores
  NAMED,  // with a run that takes long, all of them
  ALWAYS,  // with all runs, for tests
};

class Workers {
 public:
  // Starts `n` threads, or as many of them as the system has.
  explicit Workers(int n, Help help = Help::FREE, ThreadMain main = run_loop);
  ~Workers();
  Workers(const Workers&) = delete;

  // True if it pays to have help with a run of `n` operations that take so many seconds together, which is NaN
  // if that is unknown.
  bool pays(double seconds, uint64_t n);
  // Work for a run, earlier ones first, until it is removed.
  void add(std::shared_ptr<Run> run);
  void remove(const std::shared_ptr<Run>& run);
  // Wakes threads for `n` operations that are ready.
  void wake(size_t n);
  size_t size() const { return threads_.size(); }
  // The most that helped with the last run for which that was decided.
  size_t limit() const { return limit_; }

 private:
  void loop();
  void leave_core();

  const Help help_;
  FreeCores free_cores_;
  std::atomic<size_t> limit_{0};
  std::atomic<size_t> awake_{0};  // threads that work, or have been woken to
  std::atomic<int> left_core_{-1};  // core that the threads are kept off
  std::atomic<bool> placed_{true};  // false if the system does not let them be

  std::mutex mutex_;
  std::condition_variable ready_;
  std::vector<std::shared_ptr<Run>> runs_;
  uint64_t removed_ = 0;
  size_t woken_ = 0;  // threads that have been woken and have not begun
  bool stopped_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace engine
}  // namespace compcoll
