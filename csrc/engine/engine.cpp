#include "engine.h"

namespace compcoll {
namespace engine {
namespace {

constexpr uint64_t keep_nbytes = 256 << 20;

std::vector<Task*> pointers(const std::vector<std::shared_ptr<Task>>& tasks) {
  std::vector<Task*> plain;
  for (const auto& task : tasks) plain.push_back(task.get());
  return plain;
}

// Seconds that one thread needs for a schedule's coding; NaN if unknown.
double seconds_of(const Schedule& schedule, const Coding& coding) {
  double sum = coding.pace ? 0 : std::numeric_limits<double>::quiet_NaN();
  for (int kind = 0; coding.pace && kind < Pace::n_kinds; kind++)
    sum += coding.pace->seconds(kind, schedule.coded_of[kind] * itemsize(coding.dtype));
  return sum;
}

}  // namespace

Engine::Engine(bool threaded, double stall_seconds, ThreadMain main)
    : pool_(keep_nbytes),
      progress_(threaded, stall_seconds, main),
      stall_seconds_(stall_seconds),
      main_(main) {}

void Engine::set_workers(int n, Help help) {
  workers_.reset();
  if (n > 0) workers_ = std::make_unique<Workers>(n, help, main_);
}

std::shared_ptr<Run> Engine::begin(std::shared_ptr<const Schedule> schedule, const Coding& coding,
                                   const Coding& inside, std::vector<Place> buffers,
                                   std::unique_ptr<Wire> wire, Tags tags, std::shared_ptr<Marks> marks,
                                   bool direct, std::shared_ptr<Bases> bases) {
  const bool helped = workers_ && workers_->pays(seconds_of(*schedule, coding), schedule->n_coding);
  auto run = std::make_shared<Run>(std::move(schedule), coding, inside, std::move(buffers), std::move(wire),
                                   tags, pool_, helped ? workers_.get() : nullptr, std::move(marks), direct,
                                   std::move(bases));
  if (helped) workers_->add(run);
  return run;
}

End Engine::wait(const std::vector<std::shared_ptr<Task>>& tasks, double limit,
                 const std::function<bool()>& interrupted, std::function<void()> tell_long_wait) {
  auto forget_all = [&] {
    for (const auto& task : tasks) forget(task);
  };
  End end;
  try {
    end = drive(pointers(tasks), limit, stall_seconds_, progress_, interrupted, std::move(tell_long_wait));
  } catch (...) {
    forget_all();
    throw;
  }
  if (end != End::LATER) forget_all();
  return end;
}

void Engine::forget(const std::shared_ptr<Task>& task) {
  if (auto run = std::dynamic_pointer_cast<Run>(task); run && workers_) workers_->remove(run);
  if (auto group = std::dynamic_pointer_cast<TaskGroup>(task))
    for (const auto& part : group->parts()) forget(part);
}

void Engine::stop() {
  progress_.stop();
  workers_.reset();
}

}  // namespace engine
}  // namespace compcoll
