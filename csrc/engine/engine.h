// Runs schedules of any number of communicators at once, without Python.
//
//   engine.h         resources of the process: scratch memory, threads
//   schedule.h       operations and their dependencies, made by compcoll/schedule
//   run.h            one schedule in flight, with its GPU part in run_device.cpp
//   device.h         operations on GPUs, through kernels.h and cuda.h (NVIDIA's driver)
//   coding.h         one operation: codecs, frames, sums
//   layout.h         values that are not contiguous; dense.h: contiguous copies of them
//   frame.h          a frame's header
//   bases.h          values that persistent calls carried last
//   wire.h           messages; mpi.h: through MPI; node_wire.h: within a node
//   segment.h        a process's part of a node's shared memory
//   shared_memory.h  frames in that memory, written by one process and read by others
//   workers.h        threads that encode and decode while free_cores.h finds free cores
//   thread.h         starting threads
//   drive.h          progress and waiting
//   task_group.h     several tasks as one
//   pool.h           scratch memory
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
  // `threaded`: threads of the engine may call MPI. `stall_seconds`: a wait is given up after so many seconds
  // without any message. `main` runs the loops of the engine's threads.
  Engine(bool threaded, double stall_seconds, ThreadMain main = run_loop);
  ~Engine() { stop(); }

  // Uses `n` threads that encode and decode. Only allowed while nothing is in flight.
  void set_workers(int n, Help help = Help::FREE);
  std::shared_ptr<Run> begin(std::shared_ptr<const Schedule> schedule, const Coding& coding,
                             const Coding& inside, std::vector<Place> buffers, std::unique_ptr<Wire> wire,
                             Tags tags, std::shared_ptr<Marks> marks = nullptr, bool direct = false,
                             std::shared_ptr<Bases> bases = nullptr);
  // Progresses tasks until they are done, for `limit` seconds at most: see `drive`.
  End wait(const std::vector<std::shared_ptr<Task>>& tasks, double limit,
           const std::function<bool()>& interrupted, std::function<void()> tell_long_wait = nullptr);
  // Removes a completed task, or all parts of a task group, from the codec threads.
  void forget(const std::shared_ptr<Task>& task);

  Pool& pool() { return pool_; }
  Progress& progress() { return progress_; }
  size_t workers() const { return workers_ ? workers_->size() : 0; }
  // Ends the threads before MPI is finalised; no call may follow.
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
