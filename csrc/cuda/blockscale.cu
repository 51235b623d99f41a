#include "blockscale.cuh"

#define CC_TYPE(name, Q, type, T)                             \
  CC_WIDE_KERNEL(name##_encode_##type, scaled_encode<Q, T>)   \
  CC_KERNEL(name##_decode_##type, scaled_decode<Q, T, false>) \
  CC_KERNEL(name##_decode_add_##type, scaled_decode<Q, T, true>)
#define CC_CODEC(name, Q)    \
  CC_TYPE(name, Q, f32, F32) \
  CC_TYPE(name, Q, f64, F64) \
  CC_TYPE(name, Q, f16, F16) \
  CC_TYPE(name, Q, bf16, BF16)

CC_CODEC(int8, Int8)
CC_CODEC(int4, Int4)
CC_CODEC(fp8, Fp8)
#undef CC_TYPE
#undef CC_CODEC
