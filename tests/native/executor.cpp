// Launch of a kernel, in the shared library that tests/serial/executor.py makes of this and of all kernels' files.
#include "executor.h"

// Runs a kernel on one job array. flush: whether float operators flush subnormals; no kernel of float64 may
// be run so, because the processor would flush those too. resident: blocks that run at a time, at most. Returns
// what went wrong, or null.
extern "C" __attribute__((visibility("default"))) const char* executor_launch(
    void (*kernel)(const void*), unsigned grid_x, unsigned grid_y, unsigned threads, const void* jobs,
    int flush, uint64_t seed, int resident) {
  executor::kernel = kernel;
  executor::argument = jobs;
  executor::n_threads = int(threads);
  executor::grid_size = {grid_x, grid_y};
  const unsigned mode = _mm_getcsr();
  if (flush) _mm_setcsr(mode | executor::flush);
  const char* problem = executor::run(seed, resident);
  _mm_setcsr(mode);
  return problem;
}
