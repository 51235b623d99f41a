// ZFP on the CPU: checks, and the choice of the kernel.
#include "table.h"
#include "zfp_blocks.h"
#include "zfp_line.h"
#include "zfp_short_line.h"
#include "zfp_tiny_line.h"
#include "zfp_tiny_squares.h"

namespace compcoll {
namespace CC_LEVEL {
namespace zfp {

// Calls run(element, dimensions) with types in place of the numbers; UNSUPPORTED where there are none.
template <class Run>
int64_t with_types(const Args& args, Run run) {
  auto with_ndim = [&](auto element) -> int64_t {
    switch (args.ndim) {
      case 1: return run(element, std::integral_constant<int, 1>());
      case 2: return run(element, std::integral_constant<int, 2>());
      case 3: return run(element, std::integral_constant<int, 3>());
      default: return UNSUPPORTED;
    }
  };
  switch (args.dtype) {
    case FLOAT16: return with_ndim(Float16());
    case BFLOAT16: return with_ndim(BFloat16());
    case FLOAT32:
    case COMPLEX64: return with_ndim(Float32());
    case FLOAT64:
    case COMPLEX128: return with_ndim(Float64());
    default: return UNSUPPORTED;
  }
}

template <class W>
bool sound(const Args& args) {
  uint64_t values = uint64_t(1) << 2 * args.ndim;
  return args.params[0] >= Format<W>::header && args.params[0] <= values * Format<W>::bits && !args.params[1];
}

uint64_t values_per_element(const Args& args) { return args.dtype >= COMPLEX64 ? 2 : 1; }

uint64_t payload_nbytes(const Grid& grid, uint64_t maxbits) { return (grid.count() * maxbits + 63) / 64 * 8; }

// Calls run(words) with the number of words that hold a 1-D block.
template <class W, class Run>
int64_t with_words(int maxbits, Run run) {
  switch ((maxbits - 1) / Format<W>::bits) {
    case 0: return run(std::integral_constant<int, 1>());
    case 1: return run(std::integral_constant<int, 2>());
    case 2: return run(std::integral_constant<int, 3>());
    default: return run(std::integral_constant<int, 4>());
  }
}

template <class E, int D, bool Keep>
int64_t encode_array(const Grid& grid, int maxbits, const void* src, void* dst, void* values, double* bound) {
  auto s = static_cast<const uint8_t*>(src);
  auto d = static_cast<uint8_t*>(dst), v = static_cast<uint8_t*>(values);
  if constexpr (D > 1) return encode_blocks<E, D>(grid, maxbits, s, d, bound);
  else {
    // What stands in the source has to be encoded another way if it cannot be here.
    int64_t status = Keep && s == v ? representable<E>(grid, s) : 0;
    if (status) return status;
    if constexpr (sizeof(typename E::Word) == 8 && !Keep)
      if (maxbits > Format<uint64_t>::header && maxbits <= short_line)
        return encode_short_line<E>(grid, maxbits, s, d, bound);
    return with_words<typename E::Word>(maxbits, [&](auto words) {
      return encode_line<E, decltype(words)::value, Keep>(grid, maxbits, s, d, v, bound);
    });
  }
}

template <class E, int D, bool Accumulate>
int64_t decode_array(const Grid& grid, int maxbits, const void* payload, uint64_t nbytes, void* dst) {
  auto p = static_cast<const uint8_t*>(payload);
  auto d = static_cast<uint8_t*>(dst);
  if (!Accumulate && maxbits == Format<typename E::Word>::header) {  // no planes: all values are zero
    memset(d, 0, grid.n[0] * grid.n[1] * grid.n[2] * sizeof(typename E::Stored));
    return 0;
  }
  if constexpr (D == 2 && !Accumulate)
    if (is_tiny<typename E::Word>(maxbits, grid.count())) {
      decode_tiny_squares<E>(grid, maxbits, p, nbytes, d);
      return 0;
    }
  if constexpr (D > 1) decode_blocks<E, D, Accumulate>(grid, maxbits, p, nbytes, d);
  else {
    if (is_tiny<typename E::Word>(maxbits, grid.count())) {
      decode_tiny_line<E, Accumulate>(grid, maxbits, p, nbytes, d);
      return 0;
    }
    if constexpr (sizeof(typename E::Word) == 8)
      if (maxbits <= short_line) {
        if (maxbits <= 32) decode_short_line<E, 1, Accumulate>(grid, maxbits, p, nbytes, d);
        else decode_short_line<E, 2, Accumulate>(grid, maxbits, p, nbytes, d);
        return 0;
      }
    with_words<typename E::Word>(maxbits, [&](auto words) -> int64_t {
      decode_line<E, decltype(words)::value, Accumulate>(grid, maxbits, p, nbytes, d);
      return 0;
    });
  }
  return 0;
}

// Keep: writes what decoding gives to `values`.
template <bool Keep>
int64_t encode(Args* args, const void* src, void* dst, void* values) {
  Grid grid(*args, values_per_element(*args));
  return with_types(*args, [&](auto element, auto ndim) -> int64_t {
    using E = decltype(element);
    constexpr int D = decltype(ndim)::value;
    if (!sound<typename E::Word>(*args) || (Keep && D > 1)) return UNSUPPORTED;
    uint64_t nbytes = payload_nbytes(grid, args->params[0]);
    if (nbytes > args->capacity) return TOO_LARGE;
    constexpr bool keep = Keep && D == 1;
    int64_t status = encode_array<E, D, keep>(grid, args->params[0], src, dst, values, &args->bound);
    return status ? status : int64_t(nbytes);
  });
}

int64_t encode(Args* args, const void* src, void* dst) { return encode<false>(args, src, dst, nullptr); }

template <bool Accumulate>
int64_t decode(const Args* args, const void* payload, uint64_t nbytes, void* dst) {
  Grid grid(*args, values_per_element(*args));
  return with_types(*args, [&](auto element, auto ndim) -> int64_t {
    using E = decltype(element);
    if (!sound<typename E::Word>(*args) || nbytes != payload_nbytes(grid, args->params[0])) return BAD_STREAM;
    if (Accumulate && args->acc_dtype != (sizeof(typename E::Stored) == 2 ? uint32_t(FLOAT32) : args->dtype))
      return UNSUPPORTED;
    return decode_array<E, decltype(ndim)::value, Accumulate>(grid, args->params[0], payload, nbytes, dst);
  });
}

}  // namespace zfp

extern const Codec zfp_codec = {"zfp",   zfp::encode,      zfp::decode<false>, zfp::decode<true>,
                                nullptr, zfp::encode<true>};

}  // namespace CC_LEVEL
}  // namespace compcoll
