// ZFP in 1 dimension: N blocks side by side, the plane coder too.
#pragma once
#include "../../zfp_quads.h"
#include "../prefetch.h"
#include "extent.h"
#include "quad_decoder.h"
#include "reconstruct.h"
#include "stream.h"
#include "tiles.h"

namespace compcoll {
namespace CC_LEVEL {
namespace zfp {

// As put_lanes and get_lanes of stream.h, which take the blocks one by one.
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
    get_lanes(payload, nbytes, pos, words, NW, count, maxbits);
  }
};

// Memory that the walk over the blocks comes to, as much as so many of them take.
template <class T>
inline void fetch_source(const uint8_t* src, const Cursor& at, int blocks) {
  constexpr uint32_t nbytes = 4 * sizeof(typename T::Stored);
  fetch_ahead<false>(src + at.b[0] * nbytes, blocks * nbytes);
}
template <class T>
inline void fetch_target(const uint8_t* dst, const Cursor& at, int blocks) {
  constexpr uint32_t nbytes = 4 * sizeof(typename T::Target);
  fetch_ahead<true>(dst + at.b[0] * nbytes, blocks * nbytes);
}

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
    tiles.load(at, count, src,
               [&](int, const typename T::L* v) { extent.add_magnitude(largest_magnitude(v)); });
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
    fetch_source<T>(src, at, N);
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
class LineDecoder {
  using T = Tiles<E, 1, Accumulate>;
  using W = typename T::W;
  using F = Format<W>;

 public:
  using L = typename T::L;
  static constexpr int N = T::N;

  LineDecoder(const Grid& grid, int maxbits, const uint8_t* payload, uint64_t nbytes, uint8_t* dst)
      : tiles_{grid}, reader_(maxbits), maxbits_(maxbits), payload_(payload), nbytes_(nbytes), dst_(dst) {}

  // The next `count` blocks, at most N, or G N in G vectors.
  template <int G>
  __attribute__((always_inline)) void step(int count) {
    L a[G][4] = {}, words[G][NW], zeros[G];
    fetch_target<T>(dst_, at_, G * N);
    for (int g = 0; g < G; g++, pos_ += uint64_t(N) * maxbits_)
      reader_.get(payload_, nbytes_, pos_, words[g], G > 1 ? N : count);
    decode_coefficients<NW, G>(words, F::header, maxbits_, a, zeros);
    for (int g = 0; g < G; g++) {
      L e = (words[g][0] >> 1) & W(2 * F::bias + 1);
      L empty = (words[g][0] & 1) - 1;
      for (int i = 0; i < 4; i++) a[g][i] = shift_right(a[g][i], zeros[g]) & ~empty;
      from_coefficients(a[g], e);
      tiles_.store(at_, G > 1 ? N : count, a[g], dst_);
      at_.advance(tiles_.grid, G > 1 ? N : count);
    }
  }

 private:
  T tiles_;
  LineReader<NW, L> reader_;
  Cursor at_;
  uint64_t pos_ = 0;
  int maxbits_;
  const uint8_t* payload_;
  uint64_t nbytes_;
  uint8_t* dst_;
};

template <class E, int NW, bool Accumulate>
void decode_line(const Grid& grid, int maxbits, const uint8_t* payload, uint64_t nbytes, uint8_t* dst) {
  using Decoder = LineDecoder<E, NW, Accumulate>;
  constexpr int N = Decoder::N, G = quad_group<typename Decoder::L>;
  Decoder decoder(grid, maxbits, payload, nbytes, dst);
  uint64_t left = grid.count();
  for (; left >= G * N; left -= G * N) decoder.template step<G>(G * N);
  for (; left; left -= left < N ? left : N) decoder.template step<1>(left < N ? left : N);
}

}  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
