// The shared library that tests/serial/test_device_code.py loads: all kernels, and what runs one.
#include "executor.h"

#include "blockscale.cu"
#include "frame.cu"
#include "mpc.cu"
#include "szp.cu"
#include "zfp.cu"
#include "zfp_blocks.cu"

// Runs a kernel on one job array. flush: whether float operators flush subnormals; no kernel of float64 may
// be run so, because the processor would flush those too.
extern "C" __attribute__((visibility("default"))) void executor_launch(void (*kernel)(const void*),
                                                                       unsigned grid_x, unsigned grid_y,
                                                                       unsigned threads, const void* jobs,
                                                                       int flush) {
  using namespace executor;
  if (!stacks) stacks = static_cast<char*>(malloc(size_t(max_threads) * stack_nbytes));
  executor::kernel = kernel;
  argument = jobs;
  n_threads = int(threads);
  grid_size = {grid_x, grid_y};
  unsigned mode = _mm_getcsr();
  if (flush) _mm_setcsr(mode | executor::flush);
  for (unsigned y = 0; y < grid_y; y++)
    for (unsigned x = 0; x < grid_x; x++) {
      block_index = {x, y};
      run_block();
    }
  _mm_setcsr(mode);
}
