// ZFP on the CPU: choosing the codec for a number of dimensions.
#include "../table.h"

namespace compcoll {
namespace CC_LEVEL {
namespace zfp {

extern const Codec codec_1d, codec_2d, codec_3d;

// Calls run(codec); UNSUPPORTED if there is none.
template <class Run>
int64_t with_codec(const Args& args, Run run) {
  switch (args.ndim) {
    case 1: return run(codec_1d);
    case 2: return run(codec_2d);
    case 3: return run(codec_3d);
    default: return UNSUPPORTED;
  }
}

int64_t encode(Args* args, const void* src, void* dst) {
  return with_codec(*args, [&](auto& codec) { return codec.encode(args, src, dst); });
}

int64_t decode(const Args* args, const void* payload, uint64_t nbytes, void* dst) {
  return with_codec(*args, [&](auto& codec) { return codec.decode(args, payload, nbytes, dst); });
}

int64_t decode_add(const Args* args, const void* payload, uint64_t nbytes, void* dst) {
  return with_codec(*args, [&](auto& codec) { return codec.decode_add(args, payload, nbytes, dst); });
}

int64_t reconstruct(Args* args, const void* src, void* dst, void* values) {
  return with_codec(*args, [&](auto& codec) { return codec.reconstruct(args, src, dst, values); });
}

}  // namespace zfp

extern const Codec zfp_codec = {"zfp", zfp::encode, zfp::decode, zfp::decode_add, nullptr, zfp::reconstruct};

}  // namespace CC_LEVEL
}  // namespace compcoll
