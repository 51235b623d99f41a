// ZFP of 3-D arrays on the CPU.
#include "blocks.h"
#include "codec.h"

namespace compcoll {
namespace CC_LEVEL {
namespace zfp { extern const Codec codec_3d = CodecOf<Blocks<3>>::codec; }  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
