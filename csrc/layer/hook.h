// Calls of a loaded object, mpi4py's extension module, made to come to the layer: its relocation slots are
// rewritten.
#pragma once
#include <string>

namespace compcoll {
namespace layer {

// Makes the slots of an object for MPI's functions point to those of the layer, and what they held the
// functions behind these. Slots of functions that MPI lacks stay empty, but those of persistent collectives,
// which the layer has itself. Returns how many slots come to the layer, those that did before included; where
// there are none, `problem` says what was found.
int hook(void* object, std::string* problem);

// The same of the object that a caller is of.
void hook_caller(const void* caller);

// Whether a caller is of that object.
bool is_of_hooked(const void* caller);

}  // namespace layer
}  // namespace compcoll
