// ZFP of 3-D arrays on the CPU.
#include "zfp_blocks.h"
#include "zfp_codec.h"

namespace compcoll {
namespace CC_LEVEL {
namespace zfp {

struct Cubes {
  static constexpr int ndim = 3;
  static constexpr bool keeps = false;

  template <class E, bool Keep>
  static int64_t encode(const Grid& grid, int maxbits, const uint8_t* src, uint8_t* dst, uint8_t*,
                        double* bound) {
    return encode_blocks<E, 3>(grid, maxbits, src, dst, bound);
  }

  template <class E, bool Accumulate>
  static void decode(const Grid& grid, int maxbits, const uint8_t* payload, uint64_t nbytes, uint8_t* dst) {
    decode_blocks<E, 3, Accumulate>(grid, maxbits, payload, nbytes, dst);
  }
};

extern const Codec codec_3d = CodecOf<Cubes>::codec;

}  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
