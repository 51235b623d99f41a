// Waiting for tasks: by the thread that called, or by one of the engine's own.
#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "task.h"
#include "thread.h"

namespace compcoll {
namespace engine {

// How a wait ended. LATER: the time is up, and the tasks go on. After TIMEOUT, INTERRUPTED and BROKEN, MPI
// may still write to the task's memory.
enum class End : int { DONE, TIMEOUT, INTERRUPTED, BROKEN, LATER };

// Time to rest between two looks: none at first, when the thread only yields; then more and more, since a
// thread that yields leaves other threads half of a core only.
class Backoff {
 public:
  Backoff(double seconds, double spinning) : most_(seconds), spinning_(spinning) {}
  void moved() { since_ = 0; }
  double pause();  // seconds
  bool is_over() const { return over_; }

 private:
  double most_, spinning_, since_ = 0;
  bool over_ = false;
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
  // Least seconds that the progress thread rests between two looks at it.
  double rest() const { return rest_; }
  void poll_without_rest() { rest_ = 0; }
  // True if threads wait for it: they progress it in place of the progress thread.
  bool has_waiters() const { return n_waiters_ > 0; }
  void add_waiters(int n) { n_waiters_ += n; }

 protected:
  // Called once, by the thread that has ended the task, before `ended()` is true.
  virtual void finished() noexcept = 0;
  // True if the task ends with TIMEOUT when nothing has moved for too long.
  virtual bool may_stall() { return true; }
  void end_with(End end) noexcept;
  const std::shared_ptr<Task>& task() const { return task_; }  // null unless it was submitted

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

// Progresses pending tasks, in a thread that sleeps when there are none; without a thread, in calls of `step`
// and `wait`.
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
  // Progresses the tasks that are waited for until `reached`, for `limit` seconds at most.
  End wait(const PendingTasks& waited, const std::function<bool()>& reached, double limit,
           const std::function<bool()>& interrupted);
  // Seconds for which a caller that waits for tasks yields before it sleeps.
  double spinning(bool any_is_long) const;
  // The node has more ranks than cores from now on.
  void set_oversubscribed() { oversubscribed_ = true; }
  // Ends the thread. Tasks under way are not progressed any more.
  void stop();

 private:
  static constexpr size_t all_of_them = ~size_t(0);
  // Adds a waiter to tasks, during its lifetime.
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
  const ThreadMain main_;
  std::atomic<bool> oversubscribed_{false}, running_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<PendingTask>> pending_;
  std::thread thread_;
  bool stopped_ = false, asleep_ = false, hurried_ = false;
};

// Progresses tasks until all are done, nothing has moved for `stall_seconds`, or `limit` seconds have passed;
// and those of `progress` if that has no thread. Asks `interrupted` every so often while it waits.
End drive(const std::vector<Task*>& tasks, double limit, double stall_seconds, Progress& progress,
          const std::function<bool()>& interrupted);

}  // namespace engine
}  // namespace compcoll
