// ZFP in 1 dimension: N blocks side by side, the plane coder too.
#pragma once
#include "../zfp_quads.h"
#include "zfp_extent.h"
#include "zfp_gather.h"
#include "zfp_quad_decoder.h"
#include "zfp_reconstruct.h"
#include "zfp_stream.h"
#include "zfp_tiles.h"

namespace compcoll {
namespace CC_LEVEL {
namespace zfp {

// As put_lanes and get_lanes of zfp_stream.h, which take the blocks one by one.
template <int NW, class L>
inline void put_line(StreamWriter& out, const L* words, int count, int maxbits) {
  constexpr int N = lanes<L>::n, bits = 8 * sizeof(typename lanes<L>::word);
  if (maxbits == NW * bits && count == N && NW != 3 && out.fill == 0) {
    L row[NW];
    memcpy(row, words, sizeof row);
    if constexpr (NW == 2) {
      row[0] = shuffle(words[0], words[1], Zip<N, 0>());
      row[1] = shuffle(words[0], words[1], Zip<N, N / 2>());
    }
    if constexpr (NW == 4) interleave(row);
    memcpy(out.dst, row, sizeof row);
    out.dst += sizeof row;
    return;
  }
  put_lanes(out, words, NW, count, maxbits);
}

template <int NW, class L>
class LineReader {
  static constexpr int N = lanes<L>::n, bits = 8 * sizeof(typename lanes<L>::word);
  int maxbits;
#if defined(__AVX512BW__)
  BlockGather<NW, L> gather{maxbits};
#endif

 public:
  explicit LineReader(int maxbits) : maxbits(maxbits) {}

  void get(const uint8_t* payload, uint64_t nbytes, uint64_t pos, L* words, int count) const {
    if (maxbits == NW * bits && count == N && NW != 3) {
      memcpy(words, payload + pos / 8, NW * sizeof(L));
      if constexpr (NW == 2) {
        L a = words[0], b = words[1];
        words[0] = shuffle(a, b, Every<2, 0>()), words[1] = shuffle(a, b, Every<2, 1>());
      }
      if constexpr (NW == 4) deinterleave(words);
      return;
    }
#if defined(__AVX512BW__)
    if (count == N && gather.reaches(nbytes, pos)) return gather.get(payload, pos, words);
#endif
    get_lanes(payload, nbytes, pos, words, NW, count, maxbits);
  }
};

template <class L>
inline L largest_magnitude(const L* v) {
  using W = typename lanes<L>::word;
  L magnitude = {};
  for (int i = 0; i < 4; i++) {
    L m = v[i] & W(~W(0) >> 1);
    magnitude = m > magnitude ? m : magnitude;
  }
  return magnitude;
}

// Negabinary coefficients to values.
template <class L>
inline void from_coefficients(L* a, L e) {
  for (int i = 0; i < 4; i++) a[i] = from_negabinary(a[i]);
  transform_inverse<1>(a);
  L scale = dequantise_scale(e);
  for (int i = 0; i < 4; i++) a[i] = dequantise(a[i], scale);
}

// A status, or 0, without a look at the error: what `judge` says of values that are still to be encoded.
template <class E>
int64_t representable(const Grid& grid, const uint8_t* src) {
  using T = Tiles<E, 1>;
  T tiles{grid};
  Cursor at;
  Extent<typename T::L> extent;
  for (uint64_t left = grid.count(); left;) {
    int count = left < T::N ? left : T::N;
    tiles.load(at, count, src, [&](int, const typename T::L* v) { extent.add_magnitude(largest_magnitude(v)); });
    at.advance(grid, count);
    left -= count;
  }
  double bound;
  return judge<E, 1>(extent, &bound);
}

// Keep: also writes what decoding gives to `values`, which may be src.
template <class E, int NW, bool Keep>
int64_t encode_line(const Grid& grid, int maxbits, const uint8_t* src, uint8_t* dst, uint8_t* values,
                    double* bound) {
  using T = Tiles<E, 1>;
  using L = typename T::L;
  using W = typename T::W;
  constexpr int N = T::N;
  T tiles{grid};
  Cursor at;
  Extent<L> extent;
  StreamWriter out{dst};
  for (uint64_t left = grid.count(); left;) {
    int count = left < N ? left : N;
    L a[4], u[4] = {}, words[NW] = {};
    tiles.load(at, count, src, [&](int, const L* v) { __builtin_memcpy(a, v, sizeof a); });
    L magnitude = largest_magnitude(a);
    extent.add_magnitude(magnitude);
    L e = exponent(magnitude);
    words[0] = magnitude != 0 ? e + e + 1 : L{};
    L n = magnitude != 0 ? L{} : L{} + 4;
    std::conditional_t<Keep, Cut<L>, Complete<L>> complete(n, maxbits);
    if (maxbits > Format<W>::header) {
      L scale = quantise_scale(e);
      for (int i = 0; i < 4; i++) a[i] = quantise(a[i], scale);
      transform_forward<1>(a);
      for (int i = 0; i < 4; i++) u[i] = a[i] = negabinary(a[i]);
      to_planes<1>(a);
      encode_quads<NW>(a, n, Format<W>::header, maxbits, quad_tables, words, complete);
    }
    extent.template add_error<1>(e, W(8 * sizeof(W)) - complete.planes, magnitude);
    put_line<NW>(out, words, count, maxbits);
    if constexpr (Keep) {
      complete.truncate(u);
      from_coefficients(u, e);
      tiles.store(at, count, u, values);
    }
    at.advance(grid, count);
    left -= count;
  }
  out.finish();
  return judge<E, 1>(extent, bound);
}

template <class E, int NW, bool Accumulate>
void decode_line(const Grid& grid, int maxbits, const uint8_t* payload, uint64_t nbytes, uint8_t* dst) {
  using T = Tiles<E, 1, Accumulate>;
  using L = typename T::L;
  using W = typename T::W;
  using F = Format<W>;
  constexpr int N = T::N;
  T tiles{grid};
  const LineReader<NW, L> reader(maxbits);
  Cursor at;
  uint64_t pos = 0;
  for (uint64_t left = grid.count(); left; pos += uint64_t(N) * maxbits) {
    int count = left < N ? left : N;
    L a[4] = {}, words[NW];
    reader.get(payload, nbytes, pos, words, count);
    L e = (words[0] >> 1) & W(2 * F::bias + 1);
    L empty = (words[0] & 1) - 1;
    L zeros = decode_coefficients<NW>(words, F::header, maxbits, a);
    for (int i = 0; i < 4; i++) a[i] = shift_right(a[i], zeros) & ~empty;
    from_coefficients(a, e);
    tiles.store(at, count, a, dst);
    at.advance(grid, count);
    left -= count;
  }
}

}  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
