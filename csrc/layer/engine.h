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
// `stall_seconds`: COMPCOLL_TIMEOUT; `notice_seconds`: see Progress::set_notice_seconds.
void start_engine(bool threaded, double stall_seconds, double notice_seconds, engine::ThreadMain main);
// How long a call has waited that made no progress within COMPCOLL_TIMEOUT, in words.
std::string timeout_text();

// Ends the engine, before MPI does.
void stop_engine();

}  // namespace layer
}  // namespace compcoll
