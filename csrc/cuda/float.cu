#include "float_encode.cuh"

#define CC_TYPE(type, dtype, T)                                                        \
  CC_KERNEL_OF(256, 3, float_encode_##type, float_encode<compcoll::dtype>)             \
  CC_KERNEL_OF(256, 3, float_decode_##type, float_decode<compcoll::dtype, T, false>)   \
  CC_KERNEL_OF(256, 3, float_decode_add_##type, float_decode<compcoll::dtype, T, true>)
CC_TYPE(f16, FLOAT16, F16)
CC_TYPE(bf16, BFLOAT16, BF16)
CC_TYPE(f32, FLOAT32, F32)
CC_TYPE(f64, FLOAT64, F64)
#undef CC_TYPE
