// Executes collective calls: by MPI, by the engine, or by both. Calls of all forms take the same path at
// first. A blocking call is then waited for, a nonblocking one submitted, and a persistent one kept for its
// starts.
#pragma once
#include "arguments.h"

namespace compcoll {
namespace layer {

// Carries out a call that is not small, whose largest message has `message_nbytes`; MPI's code.
int enter_collective(const Invocation& from, uint64_t message_nbytes);

// Lets MPI carry out a call, or its part of one, with these arguments; its code. The layer's own operation
// replaces a sum that MPI lacks.
int call_mpi(const CollectiveCall& call, const Word* words);

// Declares the root's buffer in Bcasts of this thread as read-only: a call that would write values to it
// fails.
void set_root_is_read_only(bool is_read_only);

}  // namespace layer
}  // namespace compcoll
