// Start and end of the layer in a process.
#pragma once

namespace compcoll {
namespace layer {

// `end_layer` ends all pending operations before MPI ends, once. `watch_end` has MPI call it, for libraries
// whose calls do not reach the layer.
void end_layer();
void watch_end();

// Notes that MPI was initialized for a program that this interpreter runs. The program may still initialize
// it once, and then gets this thread level.
void begin_for_program(int level);

}  // namespace layer
}  // namespace compcoll
