#include "raw.cuh"

CC_KERNEL(raw_copy, raw_copy)
#define CC_ADD(type, W, T) CC_KERNEL(raw_decode_add_##type, raw_decode_add<W, MpcAdd<T>>)
CC_MPC_ELEMENTS(CC_ADD)
#undef CC_ADD
CC_KERNEL(raw_widen_f16, raw_widen<F16>)
CC_KERNEL(raw_widen_bf16, raw_widen<BF16>)
CC_KERNEL(raw_round_f16, raw_round<F16>)
CC_KERNEL(raw_round_bf16, raw_round<BF16>)
