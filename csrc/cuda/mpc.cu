#include "mpc.cuh"

CC_KERNEL(mpc_encode_32, mpc_encode<uint32_t>)
CC_WIDE_KERNEL(mpc_encode_64, mpc_encode<uint64_t>)
CC_KERNEL(mpc_decode_32, mpc_decode<uint32_t, MpcStore>)
CC_KERNEL(mpc_decode_64, mpc_decode<uint64_t, MpcStore>)
#define CC_ADD(type, W, T) CC_WIDE_KERNEL(mpc_decode_add_##type, mpc_decode<W, MpcAdd<T>>)
CC_MPC_ELEMENTS(CC_ADD)
#undef CC_ADD
