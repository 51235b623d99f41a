#include "bfp.cuh"

#define CC_BFP(name, T, N)                              \
  CC_WIDE_KERNEL(bfp_encode_##name, bfp_encode<T, N>)   \
  CC_KERNEL(bfp_decode_##name, bfp_decode<T, N, false>) \
  CC_KERNEL(bfp_decode_add_##name, bfp_decode<T, N, true>)
#define CC_BFP_OF(...) CC_BFP(__VA_ARGS__)
#ifdef CC_FIXED  // module for one type and number of bits, such as f32_7, F32, 7
CC_BFP_OF(CC_FIXED)
#else
CC_BFP(f32, F32, 0)
CC_BFP(f64, F64, 0)
CC_BFP(f16, F16, 0)
CC_BFP(bf16, BF16, 0)
#endif
#undef CC_BFP_OF
#undef CC_BFP
