// Float64 in 2 and 3 dimensions at low rates, with AVX-512: blocks of which only the upper halves of words
// hold anything go through the transform in lanes of 32 bits, twice as many at a time.
//
// Inverse lifting halves a number at most twice per dimension, so nothing is lost where so many bits are free
// below the lowest plane, and the upper half of a 64-bit word wraps around as the whole does.
#pragma once
#include "narrow_windows.h"
#include "transform.h"
#include "window_coder.h"

#if defined(__AVX512BW__)
namespace compcoll {
namespace CC_LEVEL {
namespace zfp {

template <int D>
class ShortWords {
 public:
  using L = vec<uint64_t, 8>;
  using Short = vec<uint32_t, 16>;
  using F = Format<uint64_t>;
  using Coder = std::conditional_t<D == 3, WindowCoder<Short, F>, NarrowWindowCoder<Short, F>>;
  static constexpr int blocks = Coder::blocks;

  explicit ShortWords(int maxbits) : coder_{maxbits} {}

  // Decodes `count` blocks, at most `blocks`, from bit `pos` on. False, and nothing is written, where some
  // need longer words, and for a while after.
  template <class T>
  bool decode(const T& tiles, Cursor& at, const uint8_t* payload, uint64_t nbytes, uint64_t pos, int count,
              uint8_t* dst) {
    if (pause_ > 0) return pause_--, false;
    Short planes[Coder::groups][1 << 2 * D], e[Coder::groups], zeros[Coder::groups];
    // Of their rows, the first half was fetched while the blocks before were finished.
    const auto rows = tiles.expected(at, count, dst);
    const Found found =
        coder_.decode(payload, nbytes, pos, count, planes, e, zeros, [&](int plane) { rows(half + plane); });
    if (found.planes < 0) {
      wait_ = wait_ < 256 ? 2 * wait_ : wait_;
      return pause_ = wait_, false;
    }
    wait_ = 8;
    Cursor next = at;
    next.advance(tiles.grid, count);
    const auto next_rows = tiles.expected(next, blocks, dst);
    for (int g = 0; count > 0; g++, count -= 16) {
      const int some = count < 16 ? count : 16;
      auto beside = [&](int z) { next_rows(half / Coder::groups * g + z); };
      finish(tiles, at, some, planes[g], found, e[g], zeros[g], dst, beside);
      at.advance(tiles.grid, some);
    }
    return true;
  }

 private:
  static constexpr int half = (1 << 2 * (D - 1)) / 2;  // of the rows
  Coder coder_;
  int pause_ = 0, wait_ = 8;

  // As finish_blocks, of the 16 blocks in a vector of short words. beside(z): what else is to be done before
  // the values of one z.
  template <class T, class Beside>
  static void finish(const T& tiles, const Cursor& at, int count, Short* x, Found found, Short e, Short zeros,
                     uint8_t* dst, Beside beside) {
    const bool whole = tiles.template whole<16>(at, count);
    const Pieces<16> pieces(tiles.grid, at, whole ? 0 : count);
    constexpr uint64_t size = sizeof(typename T::Target);
    const uint64_t row = size * tiles.grid.n[0];
    L scales[8];
    spread(e, scales);
    with_sequency<D>(found.coefficients, [&](auto sequency) {
      constexpr int S = decltype(sequency)::value;
      if constexpr (D == 3) to_coefficients<coefficients_up_to<D, S>()>(x, found.planes);
      else to_planes<D>(x);
      if (whole) {  // from registers to memory: the time goes into stores
        inverse_blocks<D, S>(x, zeros, [&](int z, const Short* v) {
          beside(z);
          uint8_t* to = dst + tiles.row_begin(at, 4 * at.b[1], 4 * at.b[2] + z) * size;
          for_rows(v, scales,
                   [&](int y, int i, L value) { T::store_vector(value, to + y * row + i * 8 * size); });
        });
      } else {
        L values[32];
        inverse_blocks<D, S>(x, zeros, [&](int z, const Short* v) {
          beside(z);
          for_rows(v, scales, [&](int y, int i, L value) { values[8 * y + i] = value; });
          pieces.template store<T::accumulates>(dst, z, values);
        });
      }
    });
  }

  // The scale of each block of two, four times.
  static void spread(Short e, L* scales) {
    const __m512i first = _mm512_setr_epi64(0, 0, 0, 0, 1, 1, 1, 1);
    for (int h = 0; h < 2; h++) {
      L scale = dequantise_scale(widen_half<L>(e, h));
      for (int i = 0; i < 4; i++) {
        const __m512i block = _mm512_add_epi64(first, _mm512_set1_epi64(2 * i));
        scales[4 * h + i] = L(_mm512_permutexvar_epi64(block, __m512i(scale)));
      }
    }
  }

  // Element i is one of two vectors' in turn, of which each has two blocks from First on.
  template <int First>
  struct PairsInTurn {
    constexpr int operator()(int i) const {
      int c = i / 2 % 4, block = First + i % 2 * 2 + i / 8;
      return 2 * block + c % 2 + c / 2 * 16;
    }
  };

  // From the upper halves of words, one of each block a vector, to rows of values: use(y, i, vector i of them).
  // Two words share a 64-bit lane on their way, so that a shift and a mask make whole words of them.
  template <class Use>
  __attribute__((always_inline)) static void for_rows(const Short* all, const L* scales, Use use) {
#pragma GCC unroll 4
    for (int y = 0; y < 4; y++) {
      Short v[4] = {all[4 * y], all[4 * y + 1], all[4 * y + 2], all[4 * y + 3]};
      lift_inverse(v[0], v[1], v[2], v[3]);
      for (int h = 0; h < 2; h++) {
        Short a = h ? shuffle(v[0], v[1], Zip<16, 8>()) : shuffle(v[0], v[1], Zip<16, 0>());
        Short b = h ? shuffle(v[2], v[3], Zip<16, 8>()) : shuffle(v[2], v[3], Zip<16, 0>());
        L both[2] = {L(shuffle(a, b, PairsInTurn<0>())), L(shuffle(a, b, PairsInTurn<4>()))};
        for (int i = 0; i < 4; i++) {
          L word = i % 2 ? both[i / 2] >> 32 << 32 : both[i / 2] << 32;
          use(y, 4 * h + i, dequantise(word, scales[4 * h + i]));
        }
      }
    }
  }
};

}  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
#endif
