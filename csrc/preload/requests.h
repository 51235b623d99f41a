// Persistent requests of calls that Python prepared, each behind a request of MPI's that stands for it.
#pragma once
#include "library.h"

namespace compcoll {
namespace preload {

// The handle that a program gets of a prepared call: that of MPI, where MPI alone will carry the call out, else
// one that stands for it.
Word keep(void* prepared, Word mpi);

}  // namespace preload
}  // namespace compcoll
