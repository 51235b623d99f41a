// The shared library that tests/serial/test_device_code.py loads: all kernels, and what runs one.
#include "executor.h"

#include "bfp.cu"
#include "blockscale.cu"
#include "float.cu"
#include "frame.cu"
#include "largest.cu"
#include "mpc.cu"
#include "raw.cu"
#include "szp.cu"
#include "zfp.cu"
#include "zfp_blocks.cu"

// Runs a kernel on one job array. flush: whether float operators flush subnormals; no kernel of float64 may
// be run so, because the processor would flush those too. Returns what went wrong, or null.
extern "C" __attribute__((visibility("default"))) const char* executor_launch(
    void (*kernel)(const void*), unsigned grid_x, unsigned grid_y, unsigned threads, const void* jobs,
    int flush, uint64_t seed) {
  executor::kernel = kernel;
  executor::argument = jobs;
  executor::n_threads = int(threads);
  executor::grid_size = {grid_x, grid_y};
  const unsigned mode = _mm_getcsr();
  if (flush) _mm_setcsr(mode | executor::flush);
  const char* problem = executor::run(seed);
  _mm_setcsr(mode);
  return problem;
}
