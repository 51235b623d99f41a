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

namespace compcoll {
namespace engine {

// How a wait ended. LATER: the time is up, and all goes on; but for that and DONE, MPI may still write to what
// the task refers to.
enum class End : int { DONE, TIMEOUT, INTERRUPTED, BROKEN, LATER };

// How long to rest: not at all at first, but to yield; then for longer, since whoever yields leaves others half
// of a core only.
class Patience {
 public:
  explicit Patience(double seconds) : most_(seconds) {}
  void moved() { since_ = 0; }
  double pause();  // seconds
  bool is_over() const { return over_; }

 private:
  const double most_;
  double since_ = 0;
  bool over_ = false;
};

// A task that is left to the progress thread; whoever comes to wait for it moves it on as well.
class Left {
 public:
  using Finished = std::function<void(End)>;

  Left(std::shared_ptr<Task> task, double patience, Finished finished)
      : task_(std::move(task)), patience_(patience), finished_(std::move(finished)) {}

  // Whether anything moved; not where somebody else is at it.
  bool step();
  bool ended() const { return ended_; }
  End end() const { return end_; }  // where it has ended

 private:
  const std::shared_ptr<Task> task_;
  std::mutex stepping_;
  Patience patience_;
  Finished finished_;
  End end_ = End::DONE;
  std::atomic<bool> ended_{false};
};

// Moves on what is left to it, in a thread that sleeps when there is nothing; or, without one of its own, when
// somebody calls `step`.
class Progress {
 public:
  Progress(bool threaded, double patience) : threaded_(threaded), patience_(patience) {}
  ~Progress() { stop(); }
  Progress(const Progress&) = delete;

  // `finished` is called once, by the thread that comes to the end of the task.
  std::shared_ptr<Left> add(std::shared_ptr<Task> task, Left::Finished finished);
  // Whether anything moved.
  bool step() { return !threaded_ && step_all(); }
  size_t under_way();
  // Ends the thread; what is under way stays so.
  void stop();

 private:
  bool step_all();
  void loop();

  const bool threaded_;
  const double patience_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Left>> left_;
  std::thread thread_;
  bool stopped_ = false;
};

// Moves tasks on until all are done, nothing has moved for `patience` seconds, or `limit` seconds have passed;
// `others` as well, and what was left, where that has no thread of its own. Asks `interrupted` every so often
// while it waits.
End drive(const std::vector<Task*>& tasks, const std::vector<Task*>& others, double limit, double patience,
          Progress& left, const std::function<bool()>& interrupted);

// The same for a task that was left.
End join(Left& left, double limit, Progress& others, const std::function<bool()>& interrupted);

}  // namespace engine
}  // namespace compcoll
