// ZFP of 2-D arrays on the CPU.
#include "zfp_blocks.h"
#include "zfp_codec.h"
#include "zfp_tiny_squares.h"

namespace compcoll {
namespace CC_LEVEL {
namespace zfp {

struct Squares : Blocks<2> {
  template <class E, bool Accumulate>
  static void decode(const Grid& grid, int maxbits, const uint8_t* payload, uint64_t nbytes, uint8_t* dst) {
    if constexpr (!Accumulate)
      if (is_tiny<typename E::Word>(maxbits, grid.count()))
        return decode_tiny_squares<E>(grid, maxbits, payload, nbytes, dst);
    Blocks<2>::decode<E, Accumulate>(grid, maxbits, payload, nbytes, dst);
  }
};

extern const Codec codec_2d = CodecOf<Squares>::codec;

}  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
