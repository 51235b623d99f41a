// Persistent calls, which are prepared once and started any number of times.
#pragma once
#include "plan.h"

namespace compcoll {
namespace layer {

// Prepares one, of which the engine has what its plan says, and MPI the rest, or all where there is none; MPI's
// code. `poisoned`: a code that the other ranks get in place of this rank's values.
int init_collective(CollectiveCall& call, const PlanRef& plan, int poisoned);

}  // namespace layer
}  // namespace compcoll
