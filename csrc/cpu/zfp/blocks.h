// ZFP in 2 and 3 dimensions: N blocks in parallel through the transform and the transposition to bit planes,
// then through the plane coder, in lanes if that is faster, else one by one.
#pragma once
#include "../../zfp_squares.h"
#include "cube_planes.h"
#include "source.h"
#include "stream.h"
#include "target.h"
#include "transform.h"
#include "window_coder.h"

namespace compcoll {
namespace CC_LEVEL {
namespace zfp {

template <class W, int D>
struct Block {
  static constexpr int size = 1 << 2 * D, bits = 8 * sizeof(W), N = vector_nbytes / sizeof(W);

  // Plane k of one lane, after to_planes.
  static uint64_t plane(const W* a, int lane, int k) {
    if (size > bits) return a[k * N + lane] | uint64_t(a[(bits + k) % size * N + lane]) << (bits & 63);
    uint64_t v = a[k % size * N + lane] >> (k / size * size % bits);
    return low_bits(v, size);
  }

  static void set_plane(W* a, int lane, int k, uint64_t x) {
    if (size > bits) {
      a[k * N + lane] = W(x);
      a[(bits + k) % size * N + lane] = W(x >> (bits & 63));
    } else {
      a[k % size * N + lane] |= W(x) << (k / size * size % bits);
    }
  }
};

// Codes planes block after block.
template <class L, int D>
struct BlockCoder {
  using W = typename lanes<L>::word;
  using F = Format<W>;
  using B = Block<W, D>;
  static constexpr int groups = 1;
  int maxbits;

  L encode(const L* planes, L e, L magnitude, int count, StreamWriter& out) const {
    L lowest = {};
    for (int lane = 0; lane < count; lane++) {
      uint64_t block[block_words] = {};
      if (magnitude[lane]) {
        BitWriter bits{block};
        bits.put(2 * uint64_t(e[lane]) + 1, F::header);
        auto plane = [&](int k) { return B::plane(reinterpret_cast<const W*>(planes), lane, k); };
        lowest[lane] = encode_planes<B::size>(bits, maxbits - F::header, F::bits, plane);
        if (bits.fill) *bits.word = bits.pending;
      }
      out.put(block, maxbits);
    }
    return lowest;
  }

  // Decodes one plane of all blocks after another: a block's next plane depends on its last one, but not on
  // other blocks.
  template <class Beside>
  void decode(const uint8_t* payload, uint64_t, uint64_t begin, int count, L out[][B::size], L* es, L* moved,
              Beside) const {
    L *planes = out[0], e = {};
    for (int i = 0; i < B::size; i++) planes[i] = L{};
    uint64_t words[lanes<L>::n][block_words];
    uint64_t pos[lanes<L>::n], n[lanes<L>::n] = {}, end = maxbits;
    int top[lanes<L>::n];
    for (int lane = 0; lane < count; lane++, begin += maxbits) {
      extract(payload, begin, maxbits, words[lane]);
      bool some = words[lane][0] & 1;
      if (some) e[lane] = low_bits(words[lane][0], F::header) >> 1;
      uint64_t first = peek(words[lane], F::header);
      int zeros = first ? trailing_zeros(first) : F::bits;  // planes before the first with a 1
      pos[lane] = some && zeros < F::bits ? F::header + zeros : end;
      top[lane] = F::bits - 1 - zeros;
    }
    bool more = true;
    for (int step = 0; more; step++) {
      more = false;
      for (int lane = 0; lane < count; lane++) {
        int k = top[lane] - step;
        if (pos[lane] >= end || k < 0) continue;
        more = true;
        uint64_t x = D == 3 ? decode_plane64(words[lane], pos[lane], end, n[lane])
                            : decode_plane<B::size>(words[lane], pos[lane], end, n[lane]);
        B::set_plane(reinterpret_cast<W*>(planes), lane, k, x);
      }
    }
    *es = e, *moved = L{};
  }
};

// Codes planes of 2-D blocks in lanes.
template <class L>
struct SquareCoder {
  using W = typename lanes<L>::word;
  using F = Format<W>;
  static constexpr int groups = 1;
  int maxbits;

  int words() const { return (maxbits + F::bits - 1) / F::bits; }

  L encode(const L* planes, L e, L magnitude, int count, StreamWriter& out) const {
    L block[16] = {};
    block[0] = magnitude != 0 ? e + e + 1 : L{};
    L n = magnitude != 0 ? L{} : L{} + 16;
    L lowest = encode_squares(planes, n, maxbits, square_tables, LaneBits<L>{block, words()});
    put_lanes(out, block, words(), count, maxbits);
    return lowest;
  }

  template <class Beside>
  void decode(const uint8_t* payload, uint64_t nbytes, uint64_t pos, int count, L planes[][16], L* e,
              L* zeros, Beside) const {
    L block[16];
    for (int i = 0; i < 16; i++) planes[0][i] = L{};
    get_lanes(payload, nbytes, pos, block, words(), count, maxbits);
    *e = (block[0] & 1) != 0 ? (block[0] >> 1) & W(2 * F::bias + 1) : L{};
    decode_squares(LaneBits<L>{block, words()}, maxbits, square_tables, planes[0]);
    *zeros = L{};
  }
};

// In lanes only if bytes can be shuffled.
#if defined(__AVX2__)
template <class L, int D>
using Coder = std::conditional_t<D == 2, SquareCoder<L>, BlockCoder<L, D>>;
#else
template <class L, int D>
using Coder = BlockCoder<L, D>;
#endif

#if defined(__AVX512BW__)
template <class L, int D>
using Encoder = std::conditional_t<D == 3, CubeCoder<L>, SquareCoder<L>>;
template <class L, int D>
using Decoder = std::conditional_t<D == 3, WindowCoder<L>, SquareCoder<L>>;
#else
template <class L, int D>
using Encoder = Coder<L, D>;
template <class L, int D>
using Decoder = Coder<L, D>;
#endif

template <class W, int D>
int64_t encode_blocks(const Source<W, D>& source, int maxbits, uint8_t* dst, double* bound) {
  using L = typename Source<W, D>::L;
  constexpr int N = Source<W, D>::N;
  Cursor at;
  Extent<L> extent;
  StreamWriter out{dst};
  Encoder<L, D> coder{maxbits};
  for (uint64_t left = source.grid.count(); left;) {
    int count = left < N ? left : N;
    L x[1 << 2 * D];
    L magnitude = source.load(at, count, x);
    extent.add_magnitude(magnitude);
    L e = exponent(magnitude);
    forward_blocks<D>(x, quantise_scale(e));
    to_planes<D>(x);
    L lowest = coder.encode(x, e, magnitude, count, out);
    extent.template add_error<D>(e, lowest, magnitude);
    at.advance(source.grid, count);
    left -= count;
  }
  out.finish();
  return source.judge(extent, bound);
}

// Planes to values in memory. zeros: number of planes by which each block was shifted up.
template <int D, class W, class L>
inline void finish_blocks(const Target<W, D>& target, const Cursor& at, int count, L* x, L e, L zeros) {
  const bool whole = target.whole(at, count);
  const L scale = dequantise_scale(e);
#if defined(__AVX512BW__)
  const Pieces<lanes<L>::n> pieces(target.grid, at, whole ? 0 : count);
#else
  L values[1 << 2 * D];
#endif
  to_planes<D>(x);  // its own inverse
  inverse_blocks<D>(x, zeros, [&](int slab, L* v) {
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) lift_inverse(v[i], v[i + 1], v[i + 2], v[i + 3]);
    for (int i = 0; i < 16; i++) v[i] = dequantise(v[i], scale);
    if (whole) return target.store_rows(at, slab, v);
#if defined(__AVX512BW__)
    target.store_pieces(pieces, slab, v);
#else
    memcpy(values + 16 * slab, v, sizeof(L[16]));
#endif
  });
#if !defined(__AVX512BW__)
  if (!whole) target.store_partial(at, count, values);
#endif
}

template <class W, int D>
void decode_blocks(const Target<W, D>& target, int maxbits, const uint8_t* payload, uint64_t nbytes) {
  using L = typename Target<W, D>::L;
  using C = Decoder<L, D>;
  constexpr int N = Target<W, D>::N;
  Cursor at;
  uint64_t pos = 0;
  C coder{maxbits};
  for (uint64_t left = target.grid.count(); left;) {
    L planes[C::groups][1 << 2 * D], e[C::groups], zeros[C::groups];
    int count = left < N * C::groups ? left : N * C::groups;
    const auto rows = target.expected(at, count);
    coder.decode(payload, nbytes, pos, count, planes, e, zeros, rows);
    pos += uint64_t(count) * maxbits;
    left -= count;
    for (int g = 0; count > 0; g++, count -= N) {
      int some = count < N ? count : N;
      finish_blocks<D>(target, at, some, planes[g], e[g], zeros[g]);
      at.advance(target.grid, some);
    }
  }
}

// The parameter of CodecOf for D dimensions.
template <int D>
struct Blocks {
  static constexpr int ndim = D;
  static constexpr bool keeps = false;

  template <bool Keep, class W>
  static int64_t encode(const Source<W, D>& source, const Target<W, D>&, int maxbits, uint8_t* dst,
                        double* bound) {
    return encode_blocks(source, maxbits, dst, bound);
  }

  template <class W>
  static void decode(const Target<W, D>& target, int maxbits, const uint8_t* payload, uint64_t nbytes) {
    decode_blocks(target, maxbits, payload, nbytes);
  }
};

}  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
