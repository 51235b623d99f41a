#include "checksum.cuh"

CC_KERNEL(checksum, checksum)
CC_KERNEL(seal, seal_payload)
