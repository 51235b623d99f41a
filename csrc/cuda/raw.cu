#include "raw.cuh"

CC_KERNEL(raw_copy, raw_copy)
#define CC_ADD(type, W, T) CC_KERNEL(raw_decode_add_##type, raw_decode_add<W, MpcAdd<T>>)
CC_ADD(i8, uint32_t, MpcInt<uint8_t>)
CC_ADD(i16, uint32_t, MpcInt<uint16_t>)
CC_ADD(i32, uint32_t, MpcInt<uint32_t>)
CC_ADD(i64, uint64_t, MpcInt<uint64_t>)
CC_ADD(f16, uint32_t, F16)
CC_ADD(bf16, uint32_t, BF16)
CC_ADD(f32, uint32_t, F32)
CC_ADD(f64, uint64_t, F64)
#undef CC_ADD
CC_KERNEL(raw_widen_f16, raw_widen<F16>)
CC_KERNEL(raw_widen_bf16, raw_widen<BF16>)
CC_KERNEL(raw_round_f16, raw_round<F16>)
CC_KERNEL(raw_round_bf16, raw_round<BF16>)
