// Launching a kernel in the shared library that tests/serial/executor.py builds from this file and all
// kernels.
#include "executor.h"

// Runs a kernel on one job array. flush: float operators flush subnormals; not allowed for kernels of
// float64, because the processor would flush its subnormals, too. resident: most blocks that run at a time.
// Returns an error message, or null.
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
