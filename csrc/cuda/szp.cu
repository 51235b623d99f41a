#include "szp_sum.cuh"

CC_KERNEL(szp_scan, szp_scan)
CC_KERNEL(szp_finish, szp_finish)
CC_KERNEL(szp_sum_scan, szp_sum_scan)
#define CC_TYPE(type, T)                             \
  CC_KERNEL(szp_range_##type, szp_range<T>)          \
  CC_KERNEL(szp_settle_##type, szp_settle<T>)        \
  CC_KERNEL(szp_sum_measure_##type, szp_sum_measure<T>) \
  CC_KERNEL(szp_sum_write_##type, szp_sum_write<T>)  \
  CC_KERNEL(szp_sum_finish_##type, szp_sum_finish<T>) \
  CC_KERNEL(szp_measure_##type, szp_measure<T>)      \
  CC_KERNEL(szp_write_##type, szp_write<T>)          \
  CC_KERNEL(szp_sizes_##type, szp_sizes<T>)          \
  CC_KERNEL(szp_decode_##type, szp_decode<T, false>) \
  CC_KERNEL(szp_decode_add_##type, szp_decode<T, true>)
CC_TYPE(f32, F32)
CC_TYPE(f64, F64)
CC_TYPE(f16, F16)
CC_TYPE(bf16, BF16)
#undef CC_TYPE
