#include "zfp_blocks.cuh"

// Blocks of threads per multiprocessor: shared memory holds no more for float64, which needs many registers.
#define CC_DIMENSIONS(type, E, D, n)                                                \
  CC_KERNEL_OF(CC_CTA, n, zfp_encode_##D##d_##type, zfp_encode_blocks<E, D>)        \
  CC_KERNEL_OF(CC_CTA, n, zfp_decode_##D##d_##type, zfp_decode_blocks<E, D, false>) \
  CC_KERNEL_OF(CC_CTA, n, zfp_decode_add_##D##d_##type, zfp_decode_blocks<E, D, true>)
#define CC_TYPE(type, E, n)    \
  CC_DIMENSIONS(type, E, 2, n) \
  CC_DIMENSIONS(type, E, 3, n)

CC_KERNEL(zfp_clear_2d, zfp_clear<2>)
CC_KERNEL(zfp_clear_3d, zfp_clear<3>)
CC_TYPE(f32, Float32, 8)
CC_TYPE(f64, Float64, 6)
CC_TYPE(f16, Float16, 8)
CC_TYPE(bf16, BFloat16, 8)
#undef CC_DIMENSIONS
#undef CC_TYPE
