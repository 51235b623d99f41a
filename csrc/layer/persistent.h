// Persistent calls, which are prepared once and started any number of times.
#pragma once
#include "plan.h"

namespace compcoll {
namespace layer {

// Prepares a persistent call: the plan's part for the engine and the rest for MPI, or all for MPI if there is
// no plan; MPI's code. `poisoned`: an error code that the other ranks get in place of this rank's values.
int init_collective(CollectiveCall& call, const PlanRef& plan, int poisoned);

}  // namespace layer
}  // namespace compcoll
