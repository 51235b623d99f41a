// Float64 in 2 and 3 dimensions at low rates, with AVX-512: blocks of which only the upper halves of words hold
// anything go through the transform in lanes of 32 bits, twice as many at a time.
//
// Inverse lifting halves a number at most twice per dimension, so nothing is lost where so many bits are free
// below the lowest plane, and the upper half of a 64-bit word wraps around as the whole does.
#pragma once
#include "zfp_narrow_windows.h"
#include "zfp_transform.h"
#include "zfp_windows.h"

#if defined(__AVX512BW__)
namespace compcoll {
namespace CC_LEVEL {
namespace zfp {

template <int D>
class ShortWords {
 public:
  using L = vec<uint64_t, 8>;
  using Short = vec<uint32_t, 16>;
  using Half = vec<int32_t, 8>;
  using Real = typename Lane<L>::Real;
  using F = Format<uint64_t>;
  using Coder = std::conditional_t<D == 3, WindowCoder<Short, F>, NarrowWindowCoder<Short, F>>;
  static constexpr int blocks = Coder::blocks;

  ShortWords(int maxbits) : coder_{maxbits} {}

  // Decodes `count` blocks, at most `blocks`, from bit `pos` on. False, and nothing is written, where some need
  // longer words, and for a while after.
  template <class T>
  bool decode(const T& tiles, Cursor& at, const uint8_t* payload, uint64_t nbytes, uint64_t pos, int count,
              uint8_t* dst) {
    if (pause_ > 0) return pause_--, false;
    Short planes[Coder::groups][1 << 2 * D], e[Coder::groups], zeros[Coder::groups];
    const Found found = coder_.decode(payload, nbytes, pos, count, planes, e, zeros);
    if (found.planes < 0) {
      wait_ = wait_ < 256 ? 2 * wait_ : wait_;
      return pause_ = wait_, false;
    }
    wait_ = 8;
    for (int g = 0; count > 0; g++, count -= 16)
      finish(tiles, at, count < 16 ? count : 16, planes[g], found, e[g], zeros[g], dst);
    return true;
  }

 private:
  Coder coder_;
  int pause_ = 0, wait_ = 8;

  template <class V>
  static auto half(const V& v, int h) {
    using Element = std::decay_t<decltype(v[0])>;
    return compcoll::CC_LEVEL::load<vec<Element, 8>>(reinterpret_cast<const Element*>(&v) + 8 * h);
  }

  // As finish_blocks, of two vectors of blocks.
  template <class T>
  static void finish(const T& tiles, Cursor& at, int count, Short* x, Found found, Short e,
                     Short zeros, uint8_t* dst) {
    L values[2][1 << 2 * D];
    Real scale[2];
    Cursor places[2];
    int counts[2];
    bool whole[2];
    for (int h = 0; h < 2; h++) {
      // The upper half of a word stands for 2^32 times what it is.
      scale[h] = bits_as<Real>(dequantise_scale(convert<L>(half(e, h)))) * 0x1p32;
      counts[h] = count - 8 * h < 0 ? 0 : count - 8 * h < 8 ? count - 8 * h : 8;
      places[h] = at;
      whole[h] = counts[h] && tiles.whole(at, counts[h]);
      at.advance(tiles.grid, counts[h]);
    }
    with_sequency<D>(found.coefficients, [&](auto sequency) {
      constexpr int S = decltype(sequency)::value;
      if constexpr (D == 3) to_coefficients<coefficients_up_to<D, S>()>(x, found.planes);
      else to_planes<D>(x);
      inverse_blocks<D, S>(x, zeros, [&](int slab, const Short* v) {
        for (int h = 0; h < 2; h++) {
          L wide[16];
          for (int i = 0; i < 16; i++)
            wide[i] = bits_as<L>(multiply(convert<Real>(Half(half(v[i], h))), scale[h]));
          if (whole[h]) tiles.store_rows(places[h], 4 * slab, 4, wide, dst);
          else memcpy(values[h] + 16 * slab, wide, sizeof wide);
        }
      });
    });
    for (int h = 0; h < 2; h++)
      if (counts[h] && !whole[h]) tiles.store_partial(places[h], counts[h], values[h], dst);
  }
};

}  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
#endif
