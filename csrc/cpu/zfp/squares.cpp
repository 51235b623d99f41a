// ZFP of 2-D arrays on the CPU.
#include "blocks.h"
#include "codec.h"

namespace compcoll {
namespace CC_LEVEL {
namespace zfp { extern const Codec codec_2d = CodecOf<Blocks<2>>::codec; }  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
