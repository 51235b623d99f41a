// ZFP of 1-D arrays on the CPU.
#include <type_traits>

#include "codec.h"
#include "line.h"
#include "short_line.h"

namespace compcoll {
namespace CC_LEVEL {
namespace zfp {

struct Lines {
  static constexpr int ndim = 1;
  static constexpr bool keeps = true;

  // Calls run(words) with the number of words that hold a block.
  template <class W, class Run>
  static int64_t with_words(int maxbits, Run run) {
    switch ((maxbits - 1) / Format<W>::bits) {
      case 0: return run(std::integral_constant<int, 1>());
      case 1: return run(std::integral_constant<int, 2>());
      case 2: return run(std::integral_constant<int, 3>());
      default: return run(std::integral_constant<int, 4>());
    }
  }

  template <class E, bool Keep>
  static int64_t encode(const Grid& grid, int maxbits, const uint8_t* src, uint8_t* dst, uint8_t* values,
                        double* bound) {
    // Values that cannot be represented have to stay in the source, for another codec.
    int64_t status = Keep && src == values ? representable<E>(grid, src) : 0;
    if (status) return status;
    return with_words<typename E::Word>(maxbits, [&](auto words) {
      return encode_line<E, decltype(words)::value, Keep>(grid, maxbits, src, dst, values, bound);
    });
  }

  template <class E, bool Accumulate>
  static void decode(const Grid& grid, int maxbits, const uint8_t* payload, uint64_t nbytes, uint8_t* dst) {
    if constexpr (sizeof(typename E::Word) == 8)
      if (maxbits <= short_line) {
        if (maxbits <= 32) return decode_short_line<E, 1, Accumulate>(grid, maxbits, payload, nbytes, dst);
        return decode_short_line<E, 2, Accumulate>(grid, maxbits, payload, nbytes, dst);
      }
    with_words<typename E::Word>(maxbits, [&](auto words) -> int64_t {
      decode_line<E, decltype(words)::value, Accumulate>(grid, maxbits, payload, nbytes, dst);
      return 0;
    });
  }
};

extern const Codec codec_1d = CodecOf<Lines>::codec;

}  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
