// Runs schedules of any number of communicators at once, without Python.
//
//   engine.h     what the process has: scratch memory, threads
//   schedule.h   what to do, made by compcoll/schedule
//   run.h        one schedule under way, and run_device.cpp its part on devices
//   device.h     what is done on GPUs, by kernels.h and cuda.h: NVIDIA's driver
//   coding.h     one operation: codecs, frames, sums
//   layout.h     values that do not lie side by side, and dense.h what they are copied to
//   frame.h      a frame's header
//   bases.h      what persistent calls carried last
//   wire.h       messages, mpi.h those of MPI, and node_wire.h those inside a node
//   segment.h    a process's part of the memory that those of a node share
//   shared_memory.h that memory: frames that one process makes and others read
//   workers.h    threads that encode and decode, where free_cores.h finds room for them
//   thread.h     how threads begin
//   drive.h      who moves tasks on
//   task_group.h several tasks as one
//   pool.h       scratch memory
#pragma once
#include "drive.h"
#include "mpi.h"
#include "node_wire.h"
#include "run.h"
#include "task_group.h"
#include "workers.h"

namespace compcoll {
namespace engine {

class Engine {
 public:
  // `threaded`: whether threads of the engine may call MPI. `stall_seconds`: seconds without any message
  // after which a wait is given up. `main` runs the loops of its threads.
  Engine(bool threaded, double stall_seconds, ThreadMain main = run_loop);
  ~Engine() { stop(); }

  // Has `n` threads that encode and decode. While nothing is under way.
  void set_workers(int n, Help help = Help::FREE);
  std::shared_ptr<Run> begin(std::shared_ptr<const Schedule> schedule, const Coding& coding,
                             const Coding& inside, std::vector<Place> buffers, std::unique_ptr<Wire> wire,
                             Tags tags, std::shared_ptr<Marks> marks = nullptr, bool direct = false,
                             std::shared_ptr<Bases> bases = nullptr);
  // Progresses tasks to their ends, for `limit` seconds at most.
  End wait(const std::vector<std::shared_ptr<Task>>& tasks, double limit,
           const std::function<bool()>& interrupted);
  // Takes a task that is done from the codec threads: one of a pending task, or a part of another task.
  void forget(const std::shared_ptr<Task>& task);

  Pool& pool() { return pool_; }
  Progress& progress() { return progress_; }
  size_t workers() const { return workers_ ? workers_->size() : 0; }
  // Ends the threads, before MPI is finalised: no call may come after that.
  void stop();

 private:
  Pool pool_;
  std::unique_ptr<Workers> workers_;
  Progress progress_;
  const double stall_seconds_;
  const ThreadMain main_;
};

}  // namespace engine
}  // namespace compcoll
