// How the engine's threads begin.
#pragma once
#include <functional>
#include <thread>

namespace compcoll {
namespace engine {

// Runs the loop of a thread. An embedding language keeps its state of the thread around it: made anew for
// each callback, it costs time and, with some MPI libraries, memory that is never freed.
using ThreadMain = void (*)(const std::function<void()>& loop);

inline void run_loop(const std::function<void()>& loop) { loop(); }

// Starts a thread; false where the system has none for this process, which is said once.
bool start_thread(ThreadMain main, std::function<void()> loop, std::thread* thread);

}  // namespace engine
}  // namespace compcoll
