#include "drive.h"

#include <sched.h>

#include <algorithm>

#include "clock.h"

namespace compcoll {
namespace engine {
namespace {

// Seconds of waiting after which a thread sleeps between two looks: for the first part of the time that it has
// waited up to the first limit, where messages of a busy network come one after the other; for the second part
// up to the second one, where somebody is late.
constexpr double spinning = 1e-3;
constexpr double part = 1.0 / 16, limit_of_part = 1e-4, late_part = 1.0 / 64, limit_of_late_part = 1e-3;
// Between two questions whether to go on: they take the interpreter's lock.
constexpr double asking = 0.05;

bool all_done(const std::vector<Task*>& tasks) {
  return std::all_of(tasks.begin(), tasks.end(), [](Task* task) { return task->done(); });
}

}  // namespace

double Patience::pause() {
  double time = now();
  if (!since_) since_ = time;
  double waited = time - since_;
  over_ = waited > most_;
  if (waited < spinning) return 0;
  return std::max(std::min(waited * part, limit_of_part), std::min(waited * late_part, limit_of_late_part));
}

End drive(const std::vector<Task*>& tasks, const std::vector<Task*>& others, double limit, double patience,
          Progress& left, const std::function<bool()>& interrupted) {
  Patience waiting(patience);
  double began = 0, asked = now(), until = asked + limit;
  while (!all_done(tasks)) {
    bool moved = false;
    for (auto* some : {&tasks, &others})
      for (Task* task : *some) {
        if (task->broken()) return End::BROKEN;
        moved |= task->step();
      }
    if (moved || left.step()) {
      if (began) tasks[0]->waited(now() - began);
      began = 0;
      waiting.moved();
      continue;
    }
    if (!began) began = now();
    double pause = waiting.pause();
    if (waiting.is_over()) return End::TIMEOUT;
    if (pause) tasks[0]->rest(pause);
    else sched_yield();
    double time = now();
    if (time > until) return End::LATER;
    if (time - asked < asking) continue;
    if (interrupted()) return End::INTERRUPTED;
    asked = time;
  }
  return End::DONE;
}

bool Left::step() {
  std::unique_lock<std::mutex> alone(stepping_, std::try_to_lock);
  if (!alone || ended_) return false;
  bool moved = task_->step(), done = task_->done();
  if (moved) patience_.moved();
  else patience_.pause();
  if (!done && !task_->broken() && !patience_.is_over()) return moved;
  end_ = done ? End::DONE : task_->broken() ? End::BROKEN : End::TIMEOUT;
  Finished finished = std::move(finished_);
  finished(end_);
  ended_ = true;
  return true;
}

End join(Left& left, double limit, Progress& others, const std::function<bool()>& interrupted) {
  Patience waiting(limit);
  double asked = now(), until = asked + limit;
  while (!left.ended()) {
    if (left.step() || others.step()) {
      waiting.moved();
    } else {
      double pause = waiting.pause();
      if (pause) std::this_thread::sleep_for(std::chrono::duration<double>(pause));
      else sched_yield();
    }
    double time = now();
    if (time > until) return End::LATER;
    if (time - asked < asking) continue;
    if (interrupted()) return End::INTERRUPTED;
    asked = time;
  }
  return left.end();
}

std::shared_ptr<Left> Progress::add(std::shared_ptr<Task> task, Left::Finished finished) {
  auto left = std::make_shared<Left>(std::move(task), patience_, std::move(finished));
  std::lock_guard<std::mutex> lock(mutex_);
  left_.push_back(left);
  if (threaded_ && !thread_.joinable()) thread_ = std::thread(&Progress::loop, this);
  changed_.notify_one();
  return left;
}

bool Progress::step_all() {
  std::vector<std::shared_ptr<Left>> some;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    left_.erase(std::remove_if(left_.begin(), left_.end(), [](const auto& left) { return left->ended(); }),
                left_.end());
    some = left_;
  }
  bool moved = false;
  for (const auto& left : some) moved |= left->step();
  return moved;
}

size_t Progress::under_way() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::count_if(left_.begin(), left_.end(), [](const auto& left) { return !left->ended(); });
}

void Progress::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
    changed_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void Progress::loop() {
  Patience waiting(1e18);
  for (;;) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return stopped_ || !left_.empty(); });
      if (stopped_) return;
    }
    if (step_all()) {
      waiting.moved();
      continue;
    }
    double pause = waiting.pause();
    if (pause) std::this_thread::sleep_for(std::chrono::duration<double>(pause));
    else sched_yield();
  }
}

}  // namespace engine
}  // namespace compcoll
