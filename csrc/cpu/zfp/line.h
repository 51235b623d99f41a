// ZFP in 1 dimension: N blocks in parallel, including the plane coder.
#pragma once
#include "../../zfp_quads.h"
#include "../prefetch.h"
#include "quad_decoder.h"
#include "reconstruct.h"
#include "source.h"
#include "stream.h"
#include "target.h"

namespace compcoll {
namespace CC_LEVEL {
namespace zfp {

// Like put_lanes and get_lanes of stream.h, which handle blocks one by one.
template <int NW, class L>
inline void put_line(StreamWriter& out, const L* words, int count, int maxbits) {
  constexpr int N = lanes<L>::n, bits = 8 * sizeof(typename lanes<L>::word);
  if (maxbits == NW * bits && count == N && out.fill == 0) {
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
    if (maxbits == NW * bits && count == N) {
      memcpy(words, payload + pos / 8, NW * sizeof(L));
      if constexpr (NW == 2) {
        L a = words[0], b = words[1];
        words[0] = shuffle(a, b, Every<2, 0>()), words[1] = shuffle(a, b, Every<2, 1>());
      }
      if constexpr (NW == 4) deinterleave(words);
      return;
    }
    if (NW == 4 && maxbits <= 3 * bits) {
      get_lanes(payload, nbytes, pos, words, 3, count, maxbits);
      words[NW - 1] = L{};
    } else {
      get_lanes(payload, nbytes, pos, words, NW, count, maxbits);
    }
  }
};

// Prefetches memory for the next `blocks` blocks.
template <bool Write, class Tiles>
inline void fetch_blocks(const Tiles& tiles, const Cursor& at, int blocks) {
  const uint32_t nbytes = 4 * tiles.value_nbytes;
  fetch_ahead<Write>(tiles.values + at.b[0] * nbytes, blocks * nbytes);
}

template <class W, class L>
inline void store_line(const Target<W, 1>& target, const Cursor& at, int count, L* a) {
  if (target.whole(at, count)) target.store_rows(at, 0, a);
  else target.store_partial(at, count, a);
}

// Negabinary coefficients to values.
template <class L>
inline void from_coefficients(L* a, L e) {
  for (int i = 0; i < 4; i++) a[i] = from_negabinary(a[i]);
  transform_inverse<1>(a);
  L scale = dequantise_scale(e);
  for (int i = 0; i < 4; i++) a[i] = dequantise(a[i], scale);
}

// A status, or 0, without the error bound: the result of `judge` for values that are still to be encoded.
template <class W>
int64_t representable(const Source<W, 1>& source) {
  using L = typename Source<W, 1>::L;
  Cursor at;
  Extent<L> extent;
  for (uint64_t left = source.grid.count(); left;) {
    L a[4];
    int count = left < source.N ? left : source.N;
    extent.add_magnitude(source.load(at, count, a));
    at.advance(source.grid, count);
    left -= count;
  }
  double bound;
  return source.judge(extent, &bound);
}

// Keep: also writes the decoded values to `values`, which may be the source's.
template <class W, int NW, bool Keep>
int64_t encode_line(const Source<W, 1>& source, const Target<W, 1>& values, int maxbits, uint8_t* dst,
                    double* bound) {
  using L = typename Source<W, 1>::L;
  constexpr int N = Source<W, 1>::N,
                together = 8;  // vectors of blocks, which share the cost of a call of `load`
  Cursor at, ahead;
  Extent<L> extent;
  StreamWriter out{dst};
  L all[together][4], magnitudes[together];
  for (uint64_t left = source.grid.count(); left;) {
    int vectors = 0;
    for (uint64_t rest = left; rest && vectors < together; vectors++) {
      int count = rest < N ? rest : N;
      fetch_blocks<false>(source, ahead, N);
      magnitudes[vectors] = source.load(ahead, count, all[vectors]);
      ahead.advance(source.grid, count);
      rest -= count;
    }
    for (int v = 0; v < vectors; v++) {
      int count = left < N ? left : N;
      L a[4], u[4] = {}, words[NW] = {};
      __builtin_memcpy(a, all[v], sizeof a);  // to registers
      const L magnitude = magnitudes[v];
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
        store_line(values, at, count, u);
      }
      at.advance(source.grid, count);
      left -= count;
    }
  }
  out.finish();
  return source.judge(extent, bound);
}

template <class W, int NW>
class LineDecoder {
  using F = Format<W>;

 public:
  using L = typename Target<W, 1>::L;
  static constexpr int N = Target<W, 1>::N;

  LineDecoder(const Target<W, 1>& target, int maxbits, const uint8_t* payload, uint64_t nbytes)
      : target_(target), reader_(maxbits), maxbits_(maxbits), payload_(payload), nbytes_(nbytes) {}

  // Decodes the next `count` blocks, at most N, or G N in G vectors.
  template <int G>
  __attribute__((always_inline)) void step(int count) {
    L a[G][4] = {}, words[G][NW], zeros[G];
    fetch_blocks<true>(target_, at_, G * N);
    for (int g = 0; g < G; g++, pos_ += uint64_t(N) * maxbits_)
      reader_.get(payload_, nbytes_, pos_, words[g], G > 1 ? N : count);
    decode_coefficients<NW, G>(words, F::header, maxbits_, a, zeros);
    for (int g = 0; g < G; g++) {
      L e = (words[g][0] >> 1) & W(2 * F::bias + 1);
      L empty = (words[g][0] & 1) - 1;
      for (int i = 0; i < 4; i++) a[g][i] = shift_right(a[g][i], zeros[g]) & ~empty;
      from_coefficients(a[g], e);
      store_line(target_, at_, G > 1 ? N : count, a[g]);
      at_.advance(target_.grid, G > 1 ? N : count);
    }
  }

 private:
  const Target<W, 1>& target_;
  LineReader<NW, L> reader_;
  Cursor at_;
  uint64_t pos_ = 0;
  int maxbits_;
  const uint8_t* payload_;
  uint64_t nbytes_;
};

template <class W, int NW>
void decode_line(const Target<W, 1>& target, int maxbits, const uint8_t* payload, uint64_t nbytes) {
  using Decoder = LineDecoder<W, NW>;
  constexpr int N = Decoder::N, G = quad_group<typename Decoder::L>;
  Decoder decoder(target, maxbits, payload, nbytes);
  uint64_t left = target.grid.count();
  for (; left >= G * N; left -= G * N) decoder.template step<G>(G * N);
  for (; left; left -= left < N ? left : N) decoder.template step<1>(left < N ? left : N);
}

}  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
