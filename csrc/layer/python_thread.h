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

// Above 0 in threads that are within compcoll: their calls go to MPI as they are.
extern COMPCOLL_INTERNAL thread_local int reentrant __attribute__((tls_model("initial-exec")));
struct ReentrancyGuard {
  ReentrancyGuard() { ++reentrant; }
  ~ReentrancyGuard() { --reentrant; }
};
// Begins that (1), or ends it (-1), in a thread of Python's.
void set_reentrant(int by);

// Python's side of an object of the layer, by a number. Where the object ends no Python may run, so that
// Python lets go of its side later.
class PythonObject {
 public:
  explicit PythonObject(uint64_t number) : own_{number} {}
  ~PythonObject();
  PythonObject(const PythonObject&) = delete;
  uint64_t number() const { return own_.front(); }

 private:
  std::list<uint64_t> own_;  // moved into the list of ended ones, which needs no memory
};

using PythonRef = std::shared_ptr<const PythonObject>;

// A number that no other object has.
uint64_t next_number();

// Numbers of the objects that have ended since this was asked last.
std::vector<uint64_t> take_ended();

// Functions of Python's side; they take the interpreter's lock.
struct Python {
  void (*prepare)(void* description);  // a `Description` of plan.h
  void (*describe)(void* failure);     // a `Failure` of errors.h
  void (*load_kernels)(uint64_t comm, int gpu, uint32_t element);  // of a communicator's codecs
  void (*finalize)();                  // once, before MPI ends
  void (*run)(const std::function<void()>& loop);  // keeps a state of the thread around a loop
};

// Has calls decided on by Python from now on; until `without_python` where its interpreter ends.
void with_python(const Python& python);
void without_python();
// Starts the thread that asks Python, unless it runs already; false if it cannot be started.
bool start_python_thread();
const Python* python();

// Runs a job that takes the interpreter's lock, on a thread of its own: no signal's handler raises there.
// This thread gives the lock up meanwhile, or runs the job where no other one can be started. False where
// there is no interpreter.
bool ask_python(const std::function<void(const Python&)>& job);

}  // namespace layer
}  // namespace compcoll
