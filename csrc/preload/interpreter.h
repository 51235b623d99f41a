// The Python interpreter that carries calls out.
#pragma once
#include "call.h"

namespace compcoll {
namespace preload {

// Set while this thread is within compcoll or MPI's own beginning and end: calls go to MPI as they are.
extern thread_local int inside;
struct Inside {
  Inside() { ++inside; }
  ~Inside() { --inside; }
};

// Whether calls are offered to Python at all.
bool is_enabled();

// Whether the process is Python's, or has had an interpreter started before.
bool is_python();

// The functions of the extension module; nullptr where it cannot be loaded, which standard error is told once.
// Starts an interpreter where the process is not Python's.
const Dispatch* dispatch();

// The same without loading anything; nullptr where the interpreter has ended.
const Dispatch* dispatch_if_loaded();

// Ends the interpreter that `dispatch` started.
void end_interpreter();

}  // namespace preload
}  // namespace compcoll
