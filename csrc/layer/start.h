// Collective calls are carried out: by MPI, by the engine, or by both. Calls of all forms take the same way,
// and are then waited for, left to the engine, or kept for later starts.
#pragma once
#include "arguments.h"

namespace compcoll {
namespace layer {

// Carries out a call that is not small, whose largest message has so many bytes; MPI's code.
int enter_collective(const Invocation& from, uint64_t message_nbytes);

// Has MPI carry out a call, or its part of one, with these words; its code. An operation that it lacks is one
// of ours.
int call_mpi(const CollectiveCall& call, const Word* words);

// Whether Bcasts of this thread have a buffer of the root's that may only be read: an error where values
// would be written to it.
void set_root_is_read_only(bool is_read_only);

}  // namespace layer
}  // namespace compcoll
