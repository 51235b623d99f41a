#include "thread.h"

#include <atomic>
#include <cstdio>
#include <exception>
#include <utility>

namespace compcoll {
namespace engine {

bool start_thread(ThreadMain main, std::function<void()> loop, std::thread* thread) {
  try {
    *thread = std::thread(main, std::move(loop));
    return true;
  } catch (const std::exception& problem) {
    static std::atomic<bool> said{false};
    if (!said.exchange(true))
      fprintf(
          stderr,
          "compcoll: a thread cannot be started (%s); the process continues with the threads that it has\n",
          problem.what());
    return false;
  }
}

}  // namespace engine
}  // namespace compcoll
