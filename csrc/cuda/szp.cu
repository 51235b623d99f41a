#include "szp_sum.cuh"

// Several blocks are in flight together, which takes more than 64 registers.
#define CC_TYPE(type, T)                                              \
  CC_KERNEL(szp_range_##type, szp_range<T>)                           \
  CC_KERNEL_OF(CC_CTA, 6, szp_encode_##type, szp_encode<T>)           \
  CC_KERNEL_OF(CC_CTA, 7, szp_decode_##type, szp_decode<T, false>)    \
  CC_KERNEL_OF(CC_CTA, 7, szp_decode_add_##type, szp_decode<T, true>) \
  CC_KERNEL_OF(CC_CTA, 6, szp_sum_##type, szp_sum<T>)
CC_TYPE(f32, F32)
CC_TYPE(f64, F64)
CC_TYPE(f16, F16)
CC_TYPE(bf16, BF16)
#undef CC_TYPE
