#include "mpc.cuh"

#define CC_WORD(bits, W)                        \
  CC_KERNEL(mpc_measure_##bits, mpc_measure<W>) \
  CC_KERNEL(mpc_scan_##bits, mpc_scan<W>)       \
  CC_KERNEL(mpc_write_##bits, mpc_write<W>)     \
  CC_KERNEL(mpc_finish_##bits, mpc_finish<W>)   \
  CC_KERNEL(mpc_sizes_##bits, mpc_sizes<W>)     \
  CC_KERNEL(mpc_decode_##bits, mpc_decode<W>)
CC_WORD(32, uint32_t)
CC_WORD(64, uint64_t)
#undef CC_WORD
