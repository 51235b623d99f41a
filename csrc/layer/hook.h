// Redirects MPI calls of loaded objects, mpi4py's extension module and Fortran libraries, to the layer by
// rewriting their relocation slots.
#pragma once
#include <string>

namespace compcoll {
namespace layer {

// Rewrites an object's slots for MPI functions to the layer's functions, which call the former targets next.
// Slots of functions that MPI lacks stay empty, except those of persistent collectives, which the layer
// provides. Returns the number of slots that point to the layer; if it is 0, `problem` describes what was
// found.
int hook(void* object, std::string* problem);

// Like `hook`, for the object that contains the caller.
void hook_caller(const void* caller);

// True if the caller is in the object that was last passed to `hook`.
bool is_of_hooked(const void* caller);

// Rewrites the slots of Open MPI's Fortran libraries, which call the PMPI functions of C, to the layer's
// functions. Does nothing if no object was loaded since the last time.
void hook_fortran();

// The address in the program if the call came through a Fortran library, else `caller` itself.
const void* caller_beyond_fortran(const void* caller);

}  // namespace layer
}  // namespace compcoll
