#include "bfp.cuh"

#define CC_TYPE(type, T)                               \
  CC_WIDE_KERNEL(bfp_encode_##type, bfp_encode<T>)     \
  CC_KERNEL(bfp_decode_##type, bfp_decode<T, false>)   \
  CC_KERNEL(bfp_decode_add_##type, bfp_decode<T, true>)
CC_TYPE(f32, F32)
CC_TYPE(f64, F64)
CC_TYPE(f16, F16)
CC_TYPE(bf16, BF16)
#undef CC_TYPE
