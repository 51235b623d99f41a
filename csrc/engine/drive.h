// Waiting for tasks, in the calling thread or in the progress thread.
#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "task.h"
#include "thread.h"

namespace compcoll {
namespace engine {

// How a wait ended. LATER: the time limit has passed, and the tasks continue. After TIMEOUT, INTERRUPTED and
// BROKEN, MPI may still write to the task's memory.
enum class End : int { DONE, TIMEOUT, INTERRUPTED, BROKEN, LATER };

// Pauses between polls: first only yields, then sleeps for longer and longer, because a thread that keeps
// yielding takes half a core from other threads.
class Backoff {
 public:
  Backoff(double seconds, double spinning) : most_(seconds), spinning_(spinning) {}
  void moved() { since_ = waited_ = 0; }
  double pause();  // seconds
  bool is_over() const { return waited_ > most_; }
  double waited() const { return waited_; }  // seconds without progress, at the last pause

 private:
  double most_, spinning_, since_ = 0, waited_ = 0;
};

// An object whose task is progressed by the progress thread, or by the threads that wait for it.
class PendingTask {
 public:
  PendingTask();
  virtual ~PendingTask() = default;
  PendingTask(const PendingTask&) = delete;

  // Progresses the task; true if anything moved. If another thread is stepping it, returns at once, or
  // `waits` for that thread first.
  bool step(bool waits = false);
  bool submitted() const { return submitted_; }
  bool ended() const { return ended_; }
  End end() const { return end_; }  // once it has ended
  bool is_long() const { return task_->is_long(); }
  bool is_on_device() const { return task_->is_on_device(); }
  // Minimum pause of the progress thread between two polls of this task, in seconds.
  double rest() const { return rest_; }
  void poll_without_rest() { rest_ = 0; }
  // True if threads wait for this task; they progress it instead of the progress thread.
  bool has_waiters() const { return n_waiters_ > 0; }
  void add_waiters(int n) { n_waiters_ += n; }
  // Lets a task that has not ended tell the user that a thread has waited for it for long.
  void note_long_wait();
  // Notes that a thread has waited for the task for so many seconds without progress.
  void note_wait(double seconds);

 protected:
  virtual void tell_long_wait() noexcept {}
  // Called once, before `ended()` becomes true, by the thread that ends the task.
  virtual void finished() noexcept = 0;
  // True if the task ends with TIMEOUT after no progress for too long.
  virtual bool may_stall() { return true; }
  void end_with(End end) noexcept;
  const std::shared_ptr<Task>& task() const { return task_; }  // null before submission

 private:
  friend class Progress;

  std::shared_ptr<Task> task_;
  std::mutex stepping_;
  Backoff backoff_{0, 0};
  End end_ = End::DONE;
  std::atomic<bool> submitted_{false}, ended_{false};
  std::atomic<int> n_waiters_{0};
  std::atomic<double> rest_;
};

using PendingTasks = std::vector<PendingTask*>;

// Progresses pending tasks, in a thread that sleeps when there are none, or without a thread in calls of
// `step` and `wait`.
class Progress {
 public:
  Progress(bool threaded, double stall_seconds, ThreadMain main = run_loop)
      : threaded_(threaded), stall_seconds_(stall_seconds), main_(main) {}
  ~Progress() { stop(); }
  Progress(const Progress&) = delete;

  // Takes over a task. A caller that is about to wait for it need not wake the thread.
  void add(std::shared_ptr<PendingTask> pending, std::shared_ptr<Task> task, bool wakes = true);
  // Starts the thread now instead of in the first `add`; false if it cannot be started.
  bool start();
  // Progresses all tasks; true if anything moved.
  bool step() { return step_some(nullptr); }
  // Like `step()`, but first waits for tasks that another thread is stepping, so that everything that can
  // complete has completed on return.
  void step_all();
  // Like `step()`, but does nothing if the thread runs.
  bool step_alone() { return !running_ && step(); }
  // Progresses `waited` until `reached` returns true, for `limit` seconds at most.
  End wait(const PendingTasks& waited, const std::function<bool()>& reached, double limit,
           const std::function<bool()>& interrupted);
  // Seconds for which a caller that waits for tasks yields before it sleeps.
  double spinning(bool any_is_long) const;
  // Seconds without progress after which a wait tells the user; infinite by default.
  void set_notice_seconds(double seconds) { notice_seconds_ = seconds; }
  double notice_seconds() const { return notice_seconds_; }
  // Declares that the node has more ranks than cores.
  void set_oversubscribed() { oversubscribed_ = true; }
  // Ends the thread. Tasks in flight are not progressed any more.
  void stop();

 private:
  static constexpr size_t all_of_them = ~size_t(0);
  // Counts as a waiter for these tasks during its lifetime.
  struct Attendance {
    Attendance(Progress& progress, const PendingTasks& waited) : progress(progress), waited(waited) {
      progress.add_waiters(waited, 1);
    }
    ~Attendance() { progress.add_waiters(waited, -1); }
    Attendance(const Attendance&) = delete;
    Progress& progress;
    const PendingTasks& waited;
  };

  bool start_locked();
  std::shared_ptr<PendingTask> before(size_t* place);
  // Progresses all tasks, or those with waiters, or those without.
  bool step_some(const bool* with_waiters);
  void loop();
  void drop_ended();
  bool has_work() const;
  bool has_long_with_waiters();
  bool is_on_device(bool with_waiters) const;
  double shortest_rest() const;
  void add_waiters(const PendingTasks& waited, int n);

  const bool threaded_;
  const double stall_seconds_;
  double notice_seconds_ = std::numeric_limits<double>::infinity();
  const ThreadMain main_;
  std::atomic<bool> oversubscribed_{false}, running_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<PendingTask>> pending_;
  std::thread thread_;
  bool stopped_ = false, asleep_ = false, hurried_ = false;
};

// Progresses tasks until all are done, nothing has moved for `stall_seconds`, or `limit` seconds have passed;
// also progresses the tasks of `progress` if it has no thread. Calls `interrupted` now and then while
// waiting, and `tell_long_wait` once, after the notice time of `progress`.
End drive(const std::vector<Task*>& tasks, double limit, double stall_seconds, Progress& progress,
          const std::function<bool()>& interrupted, std::function<void()> tell_long_wait = nullptr);

}  // namespace engine
}  // namespace compcoll
