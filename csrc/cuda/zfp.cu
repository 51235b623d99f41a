// A kernel for each element type and number of words that hold a block; 3 words use the kernel for 4.
#include "zfp_decode.cuh"

#define CC_ZFP(name, ...) CC_KERNEL_OF(compcoll::CC_LEVEL::cuda::zfp_threads, 2, name, __VA_ARGS__)
#define CC_BLOCKS(type, E, n, name, exact)                           \
  CC_ZFP(zfp_encode_##type##_##name, zfp_encode<E, n, exact>)        \
  CC_ZFP(zfp_decode_##type##_##name, zfp_decode<E, n, exact, false>) \
  CC_ZFP(zfp_decode_add_##type##_##name, zfp_decode<E, n, exact, true>)
#define CC_TYPE(type, E)          \
  CC_BLOCKS(type, E, 1, 1, false) \
  CC_BLOCKS(type, E, 2, 2, false) \
  CC_BLOCKS(type, E, 4, 4, false)

CC_TYPE(f32, Float32)
CC_TYPE(f64, Float64)
CC_TYPE(f16, Float16)
CC_TYPE(bf16, BFloat16)

// Blocks of exactly 32 or 64 bits: rates 8 and 16.
CC_BLOCKS(f32, Float32, 1, 32bit, true)
CC_BLOCKS(f32, Float32, 2, 64bit, true)
CC_BLOCKS(f64, Float64, 1, 64bit, true)
CC_BLOCKS(f16, Float16, 1, 32bit, true)
CC_BLOCKS(bf16, BFloat16, 1, 32bit, true)
#undef CC_TYPE
#undef CC_BLOCKS
#undef CC_ZFP
