#include "python_thread.h"

#include <condition_variable>
#include <mutex>
#include <thread>

#include "engine/thread.h"
#include "mpi.h"

namespace compcoll {
namespace layer {

thread_local int reentrant = 0;

void set_reentrant(int by) { reentrant += by; }

namespace {

std::mutex ending;
auto& ended = *new std::list<uint64_t>;  // never destroyed: objects end when the process does
std::atomic<uint64_t> n_numbers{0};

// Runs one job at a time, for any caller.
class PythonThread {
 public:
  void begin(const Python& python) {
    std::lock_guard<std::mutex> lock(mutex_);
    python_ = python, alive_ = true;
  }

  // Waits for the running job.
  void end() {
    std::unique_lock<std::mutex> lock(mutex_);
    alive_ = false;
    changed_.notify_all();
    lock.unlock();
    ReleaseGil released_gil;
    if (thread_.joinable()) thread_.join();
  }

  const Python* python() const { return alive_ ? &python_ : nullptr; }

  bool start() {
    std::lock_guard<std::mutex> lock(mutex_);
    return alive_ &&
           (thread_.joinable() || engine::start_thread(engine::run_loop, [this] { loop(); }, &thread_));
  }

  // False if there is no thread for the job.
  bool run(const std::function<void(const Python&)>& job) {
    ReleaseGil released_gil;
    std::unique_lock<std::mutex> lock(mutex_);
    if (!alive_) return false;
    if (job_) {  // the running job may wait for a rank that waits for this one
      lock.unlock();
      std::thread another;
      auto run_job = [&] {
        ReentrancyGuard within;
        python_.run([&] { job(python_); });
      };
      if (!engine::start_thread(engine::run_loop, run_job, &another)) return false;
      another.join();
      return true;
    }
    bool done = false;
    job_ = &job, done_ = &done;
    changed_.notify_all();
    changed_.wait(lock, [&done] { return done; });
    return true;
  }

 private:
  void loop() {
    ReentrancyGuard within;
    python_.run([this] {
      std::unique_lock<std::mutex> lock(mutex_);
      for (;;) {
        changed_.wait(lock, [this] { return job_ || !alive_; });
        if (!job_) return;
        const auto* job = job_;
        lock.unlock();
        (*job)(python_);
        lock.lock();
        *done_ = true;
        job_ = nullptr;
        changed_.notify_all();
      }
    });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread thread_;
  Python python_ = {};
  std::atomic<bool> alive_{false};
  const std::function<void(const Python&)>* job_ = nullptr;
  bool* done_ = nullptr;
};

// Never destroyed: other threads may be in it when the process ends.
PythonThread& thread() {
  static auto one = new PythonThread;
  return *one;
}

}  // namespace

PythonObject::~PythonObject() {
  std::lock_guard<std::mutex> lock(ending);
  ended.splice(ended.end(), own_);
}

uint64_t next_number() { return ++n_numbers; }

std::vector<uint64_t> take_ended() {
  std::lock_guard<std::mutex> lock(ending);
  std::vector<uint64_t> numbers(ended.begin(), ended.end());
  ended.clear();
  return numbers;
}

void with_python(const Python& python) { thread().begin(python); }

void without_python() { thread().end(); }

bool start_python_thread() { return thread().start(); }

const Python* python() { return thread().python(); }

bool ask_python(const std::function<void(const Python&)>& job) {
  // An MPI below MPI_THREAD_SERIALIZED gets calls of one thread only.
  const bool apart = !reentrant && library().thread_level >= library().thread_serialized;
  if (apart && thread().start() && thread().run(job)) return true;
  const Python* here = python();
  if (!here) return false;
  ReleaseGil released_gil;
  ReentrancyGuard within;
  job(*here);
  return true;
}

}  // namespace layer
}  // namespace compcoll
