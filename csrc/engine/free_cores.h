// Cores of this machine on which no thread is running.
#pragma once
#include <atomic>
#include <cstddef>

namespace compcoll {
namespace engine {

class FreeCores {
 public:
  FreeCores();
  ~FreeCores();
  FreeCores(const FreeCores&) = delete;

  // Number of free cores, averaged over recent calls; a call takes one or two microseconds. Threads that spin
  // for a message count as running, but `own` of the running ones are not counted. Infinite if the system
  // does not tell.
  double look(size_t own);

 private:
  const int file_;
  const double cores_;
  std::atomic<double> average_{-1};
};

}  // namespace engine
}  // namespace compcoll
