// Python, which decides on calls that the layer has not seen before (compcoll/comm/prepare.py).
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <vector>

#include "mpi.h"

namespace compcoll {
namespace layer {

// Positive in threads that are within compcoll: their calls go to MPI as they are.
extern COMPCOLL_INTERNAL thread_local int reentrant __attribute__((tls_model("initial-exec")));
struct ReentrancyGuard {
  ReentrancyGuard() { ++reentrant; }
  ~ReentrancyGuard() { --reentrant; }
};
// Adds 1 or -1 to the counter, in a thread of Python's.
void set_reentrant(int by);

// Python's side of an object of the layer, by a number. No Python may run where the object is destroyed, so
// Python releases its side later.
class PythonObject {
 public:
  explicit PythonObject(uint64_t number) : own_{number} {}
  ~PythonObject();
  PythonObject(const PythonObject&) = delete;
  uint64_t number() const { return own_.front(); }

 private:
  std::list<uint64_t> own_;  // moved into the list of ended objects, which needs no memory
};

using PythonRef = std::shared_ptr<const PythonObject>;

// A number that no other object has.
uint64_t next_number();

// Numbers of the objects that have ended since the last call.
std::vector<uint64_t> take_ended();

// Functions of Python's side; they take the GIL.
struct Python {
  void (*prepare)(void* description);  // a `Description` of plan.h
  void (*describe)(void* failure);     // a `Failure` of errors.h
  void (*load_kernels)(uint64_t comm, int gpu, uint32_t element);  // of a communicator's codecs
  void (*finalize)();                  // once, before MPI ends
  void (*run)(const std::function<void()>& loop);  // keeps a Python thread state around a loop
};

// Lets Python decide on calls from now on, until `without_python` when its interpreter ends.
void with_python(const Python& python);
void without_python();
// Starts the thread that asks Python, unless it runs already; false if it cannot be started.
bool start_python_thread();
const Python* python();

// Runs a job that takes the GIL on a thread of its own, where no signal handler raises; this thread releases
// the GIL meanwhile. Runs the job here if no other thread can be started. False if there is no interpreter.
bool ask_python(const std::function<void(const Python&)>& job);

}  // namespace layer
}  // namespace compcoll
