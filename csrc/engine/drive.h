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

// How a wait ended. LATER: the time is up, and all goes on; but for that and DONE, MPI may still write to
// what the task refers to.
enum class End : int { DONE, TIMEOUT, INTERRUPTED, BROKEN, LATER };

// How long to rest: not at all at first, but to yield; then for longer, since whoever yields leaves others
// half of a core only.
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

// Something whose task is left to the progress thread, or to whoever comes to wait for it.
class PendingTask {
 public:
  PendingTask();
  virtual ~PendingTask() = default;
  PendingTask(const PendingTask&) = delete;

  // Whether anything moved; not where somebody else is at it, for whom it does not wait.
  bool step(bool waits = false);
  bool submitted() const { return submitted_; }
  bool ended() const { return ended_; }
  End end() const { return end_; }  // where it has ended
  bool is_long() const { return task_->is_long(); }
  bool is_on_device() const { return task_->is_on_device(); }
  // Seconds at least that the progress thread rests between two looks at it.
  double rest() const { return rest_; }
  void poll_without_rest() { rest_ = 0; }
  // Whether somebody waits for it, and so does not leave it to the progress thread.
  bool has_waiters() const { return n_waiters_ > 0; }
  void add_waiters(int n) { n_waiters_ += n; }

 protected:
  // Called once, by the thread that comes to the end, before anybody learns of it.
  virtual void finished() noexcept = 0;
  // Whether it ends where nothing has moved for too long.
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

// Moves on what is left to it, in a thread that sleeps when there is nothing; or, without one of its own,
// when somebody calls `step`.
class Progress {
 public:
  Progress(bool threaded, double stall_seconds, ThreadMain main = run_loop)
      : threaded_(threaded), stall_seconds_(stall_seconds), main_(main) {}
  ~Progress() { stop(); }
  Progress(const Progress&) = delete;

  // Takes over a task; without waking the thread where the caller is about to wait.
  void add(std::shared_ptr<PendingTask> pending, std::shared_ptr<Task> task, bool wakes = true);
  // Starts the thread now instead of in the first `add`; false if it cannot be started.
  bool start();
  // Moves on what was left; whether anything moved.
  bool step() { return step_some(nullptr); }
  // The same behind what the thread is at: of what can be complete, all is.
  void step_all();
  // The same where there is no thread for it.
  bool step_alone() { return !running_ && step(); }
  // Moves on what is waited for until `reached`, for `limit` seconds at most.
  End wait(const PendingTasks& waited, const std::function<bool()>& reached, double limit,
           const std::function<bool()>& interrupted);
  // Seconds for which a caller that waits for tasks yields before it sleeps.
  double spinning(bool any_is_long) const;
  // From now on the ranks of this node have fewer cores than they are.
  void set_oversubscribed() { oversubscribed_ = true; }
  // Ends the thread; what is under way stays so.
  void stop();

 private:
  static constexpr size_t all_of_them = ~size_t(0);
  // Marks tasks as waited for, during its lifetime.
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
  // Of all that was left, or of what is `attended` or not.
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

// Moves tasks on until all are done, nothing has moved for `stall_seconds`, or `limit` seconds have passed;
// what was left as well, where that has no thread of its own. Asks `interrupted` every so often while it
// waits.
End drive(const std::vector<Task*>& tasks, double limit, double stall_seconds, Progress& progress,
          const std::function<bool()>& interrupted);

}  // namespace engine
}  // namespace compcoll
