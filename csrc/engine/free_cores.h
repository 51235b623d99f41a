// Cores of this machine on which no thread runs.
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

  // Free cores, on average over the last looks, one of which takes a microsecond or two. Threads that wait for
  // a message by spinning count as running, and `own` of the running ones do not. Infinite if the system does
  // not tell.
  double look(size_t own);

 private:
  const int file_;
  const double cores_;
  std::atomic<double> average_{-1};
};

}  // namespace engine
}  // namespace compcoll
