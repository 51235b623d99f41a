// The process's engine, and the functions of MPI that it calls.
#pragma once
#include <string>

#include "engine/engine.h"

namespace compcoll {
namespace layer {

engine::Engine& the_engine();
const engine::Library& engine_library();
// Starts the threads that nonblocking calls need; false if one of them cannot be started.
bool start_threads();
void start_engine(bool threaded, double stall_seconds, engine::ThreadMain main);
// Error text for tasks that made no progress within COMPCOLL_TIMEOUT.
std::string late_text();

// Ends the engine, before MPI does.
void stop_engine();

}  // namespace layer
}  // namespace compcoll
