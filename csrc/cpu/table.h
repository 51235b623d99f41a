// The list of CPU codecs. To add one, define its `Codec` in the level's namespace, such as foo_codec in a
// file csrc/cpu/foo.cpp, and add its name here.
#pragma once
#include "../abi.h"

#define CC_CODECS(X) X(raw) X(zfp) X(mpc) X(float) X(lossless) X(szp) X(int8) X(int4) X(fp8) X(bfp) X(delta)

namespace compcoll {
#define CC_DECLARE(name) extern const Codec name##_codec;
namespace CC_LEVEL {
CC_CODECS(CC_DECLARE)
}
#undef CC_DECLARE

struct Level {
  const char* name;
  const Codec* const* codecs;  // in the order of CC_CODECS, null-terminated
  uint32_t (*checksum)(const uint8_t*, uint64_t);
  bool (*accumulate)(uint32_t dtype, uint32_t acc_dtype, const void* src, void* dst, uint64_t n);
  // From 16-bit floats to float32 and back, to nearest even; false for other types.
  bool (*convert)(uint32_t dtype, uint32_t into_dtype, const void* src, void* dst, uint64_t n);
  // The largest magnitude of n values; not finite if any value is not, and 0 for integers.
  double (*largest)(uint32_t dtype, const void* values, uint64_t n);
};

// The built levels that this processor supports, best first; null-terminated.
const Level* const* levels();
}  // namespace compcoll
