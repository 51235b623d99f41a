#include "free_cores.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <limits>

namespace compcoll {
namespace engine {
namespace {

// Weight of a new value in the average.
constexpr double part = 0.25;

}  // namespace

FreeCores::FreeCores()
    : file_(open("/proc/loadavg", O_RDONLY | O_CLOEXEC)), cores_(double(sysconf(_SC_NPROCESSORS_ONLN))) {}

FreeCores::~FreeCores() {
  if (file_ >= 0) close(file_);
}

double FreeCores::look(size_t own) {
  char text[128];
  const ssize_t n = file_ < 0 ? -1 : pread(file_, text, sizeof text - 1, 0);
  unsigned long running;
  text[n > 0 ? n : 0] = 0;
  if (sscanf(text, "%*s %*s %*s %lu/", &running) != 1) return std::numeric_limits<double>::infinity();
  const double free = cores_ - double(running > own ? running - own : 0), before = average_;
  return average_ = before < 0 ? (free > 0 ? free : 0) : before + part * ((free > 0 ? free : 0) - before);
}

}  // namespace engine
}  // namespace compcoll
