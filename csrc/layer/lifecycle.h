// The beginning and the end of the layer in a process.
#pragma once

namespace compcoll {
namespace layer {

// Ends all that is under way, before MPI ends, once; and has MPI do so where a library ends it whose calls do
// not come here.
void end_layer();
void watch_end();

// MPI has begun for a program that runs in this interpreter: the program may still begin it, once, and is told
// of this level of threads.
void begin_for_program(int level);

}  // namespace layer
}  // namespace compcoll
