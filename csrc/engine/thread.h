// How the engine's threads begin.
#pragma once
#include <functional>

namespace compcoll {
namespace engine {

// Runs the loop of a thread. An embedding language keeps its state of the thread around it: made anew for
// each callback, it costs time and, with some MPI libraries, memory that is never freed.
using ThreadMain = void (*)(const std::function<void()>& loop);

inline void run_loop(const std::function<void()>& loop) { loop(); }

}  // namespace engine
}  // namespace compcoll
