// Calls of loaded objects, mpi4py's extension module and libraries of Fortran, made to come to the layer: their
// relocation slots are rewritten.
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

// Makes the slots of Open MPI's libraries of Fortran, which call MPI's functions of C by their names with P,
// point to those of the layer, behind which comes what comes behind calls of C. Does nothing where no object
// was loaded since the last time.
void hook_fortran();

// The address in a program whose call has come by such a library, or `caller` itself.
const void* caller_beyond_fortran(const void* caller);

}  // namespace layer
}  // namespace compcoll
