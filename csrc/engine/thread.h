// Starting the engine's threads.
#pragma once
#include <functional>
#include <thread>

namespace compcoll {
namespace engine {

// Runs a thread's loop. An embedding language keeps its thread state alive around the loop: creating one for
// each callback costs time and, with some MPI libraries, memory that is never freed.
using ThreadMain = void (*)(const std::function<void()>& loop);

inline void run_loop(const std::function<void()>& loop) { loop(); }

// Starts a thread; false if the system refuses, which is reported once.
bool start_thread(ThreadMain main, std::function<void()> loop, std::thread* thread);

}  // namespace engine
}  // namespace compcoll
