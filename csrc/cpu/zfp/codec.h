// The ZFP codec for arrays of one number of dimensions, around the code that encodes and decodes them. Each
// number has its own file, so that they compile in parallel.
#pragma once
#include "../table.h"
#include "source.h"
#include "target.h"

namespace compcoll {
namespace CC_LEVEL {
namespace zfp {

// Calls run(element) with the type for a dtype; UNSUPPORTED if there is none.
template <class Run>
int64_t with_element(const Args& args, Run run) {
  switch (args.dtype) {
    case FLOAT16: return run(Float16());
    case BFLOAT16: return run(BFloat16());
    case FLOAT32:
    case COMPLEX64: return run(Float32());
    case FLOAT64:
    case COMPLEX128: return run(Float64());
    default: return UNSUPPORTED;
  }
}

// `Arrays` has `ndim`; encode<Keep>(source, values, maxbits, dst, bound), which with `Keep` writes the
// decoded values to `values`, if `Arrays::keeps`; and decode(target, maxbits, payload, nbytes). Both are
// templates over the word.
template <class Arrays>
struct CodecOf {
  template <class W>
  static bool sound(const Args& args) {
    uint64_t values = uint64_t(1) << 2 * Arrays::ndim;
    return args.params[0] >= Format<W>::header && args.params[0] <= values * Format<W>::bits &&
           !args.params[1];
  }

  static Grid grid_of(const Args& args) { return Grid(args, args.dtype >= COMPLEX64 ? 2 : 1); }

  static uint64_t payload_nbytes(const Grid& grid, uint64_t maxbits) {
    return (grid.count() * maxbits + 63) / 64 * 8;
  }

  template <bool Keep>
  static int64_t encode(Args* args, const void* src, void* dst, void* values) {
    const Grid grid = grid_of(*args);
    return with_element(*args, [&](auto element) -> int64_t {
      using E = decltype(element);
      if (!sound<typename E::Word>(*args)) return UNSUPPORTED;
      uint64_t nbytes = payload_nbytes(grid, args->params[0]);
      if (nbytes > args->capacity) return TOO_LARGE;
      const SourceOf<E, Arrays::ndim> source(grid, src);
      const TargetOf<E, Arrays::ndim, false> kept(grid, values);
      const Source<typename E::Word, Arrays::ndim>& from = source;
      const Target<typename E::Word, Arrays::ndim>& to = kept;
      int64_t status =
          Arrays::template encode<Keep>(from, to, args->params[0], static_cast<uint8_t*>(dst), &args->bound);
      return status ? status : int64_t(nbytes);
    });
  }

  static int64_t encode(Args* args, const void* src, void* dst) {
    return encode<false>(args, src, dst, nullptr);
  }

  static int64_t reconstruct(Args* args, const void* src, void* dst, void* values) {
    if constexpr (Arrays::keeps) return encode<true>(args, src, dst, values);
    else return UNSUPPORTED;
  }

  template <bool Accumulate>
  static int64_t decode(const Args* args, const void* payload, uint64_t nbytes, void* dst) {
    const Grid grid = grid_of(*args);
    return with_element(*args, [&](auto element) -> int64_t {
      using E = decltype(element);
      using Stored = typename E::Stored;
      const uint64_t maxbits = args->params[0];
      if (!sound<typename E::Word>(*args) || nbytes != payload_nbytes(grid, maxbits)) return BAD_STREAM;
      if (Accumulate && args->acc_dtype != (sizeof(Stored) == 2 ? uint32_t(FLOAT32) : args->dtype))
        return UNSUPPORTED;
      const TargetOf<E, Arrays::ndim, Accumulate> target(grid, dst);
      const Target<typename E::Word, Arrays::ndim>& to = target;
      if (!Accumulate && maxbits == Format<typename E::Word>::header)  // no planes: all values are zero
        memset(dst, 0, grid.n[0] * grid.n[1] * grid.n[2] * sizeof(Stored));
      else Arrays::decode(to, maxbits, static_cast<const uint8_t*>(payload), nbytes);
      return 0;
    });
  }

  static constexpr Codec codec = {"zfp", encode, decode<false>, decode<true>, nullptr, reconstruct};
};

}  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
