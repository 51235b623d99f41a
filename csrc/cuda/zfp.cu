// A kernel for each element type and number of words that hold a block, 3 being done by 4.
#include "zfp_decode.cuh"

#define CC_WORDS(type, E, n)                                  \
  CC_KERNEL(zfp_encode_##type##_##n, zfp_encode<E, n, false>) \
  CC_KERNEL(zfp_decode_##type##_##n, zfp_decode<E, n, false>) \
  CC_KERNEL(zfp_decode_add_##type##_##n, zfp_decode<E, n, true>)
#define CC_TYPE(type, E) \
  CC_WORDS(type, E, 1)   \
  CC_WORDS(type, E, 2)   \
  CC_WORDS(type, E, 4)   \
  CC_KERNEL(zfp_finish_##type, zfp_finish<E>)

CC_TYPE(f32, Float32)
CC_TYPE(f64, Float64)
CC_TYPE(f16, Float16)
CC_TYPE(bf16, BFloat16)
#undef CC_WORDS
#undef CC_TYPE

// Blocks of exactly 32 or 64 bits: rates 8 and 16.
CC_KERNEL(zfp_encode_f32_32bit, zfp_encode<Float32, 1, true>)
CC_KERNEL(zfp_encode_f32_64bit, zfp_encode<Float32, 2, true>)
CC_KERNEL(zfp_encode_f64_64bit, zfp_encode<Float64, 1, true>)
CC_KERNEL(zfp_encode_f16_32bit, zfp_encode<Float16, 1, true>)
CC_KERNEL(zfp_encode_bf16_32bit, zfp_encode<BFloat16, 1, true>)
