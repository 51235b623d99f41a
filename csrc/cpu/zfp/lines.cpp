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

  // Calls run(words) with a number of words that can hold a block: 4 in place of 3.
  template <class W, class Run>
  static int64_t with_words(int maxbits, Run run) {
    if (maxbits <= Format<W>::bits) return run(std::integral_constant<int, 1>());
    if (maxbits <= 2 * Format<W>::bits) return run(std::integral_constant<int, 2>());
    return run(std::integral_constant<int, 4>());
  }

  template <bool Keep, class W>
  static int64_t encode(const Source<W, 1>& source, const Target<W, 1>& values, int maxbits, uint8_t* dst,
                        double* bound) {
    // Values that cannot be represented must stay in the source for another codec.
    int64_t status = Keep && source.values == values.values ? representable(source) : 0;
    if (status) return status;
    return with_words<W>(maxbits, [&](auto words) {
      return encode_line<W, decltype(words)::value, Keep>(source, values, maxbits, dst, bound);
    });
  }

  template <class W>
  static void decode(const Target<W, 1>& target, int maxbits, const uint8_t* payload, uint64_t nbytes) {
    if constexpr (sizeof(W) == 8)
      if (maxbits <= short_line) {
        if (maxbits <= 32) return decode_short_line<1>(target, maxbits, payload, nbytes);
        return decode_short_line<2>(target, maxbits, payload, nbytes);
      }
    with_words<W>(maxbits, [&](auto words) -> int64_t {
      decode_line<W, decltype(words)::value>(target, maxbits, payload, nbytes);
      return 0;
    });
  }
};

extern const Codec codec_1d = CodecOf<Lines>::codec;

}  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
