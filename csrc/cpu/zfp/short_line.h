// ZFP in 1 dimension of float64 at low rates: blocks that have at most 32 bits behind the header have their
// planes in the upper halves of words, and are coded in lanes of 32 bits, twice as many at a time.
#pragma once
#include "line.h"

namespace compcoll {
namespace CC_LEVEL {
namespace zfp {

constexpr int short_line = 32 + Format<uint64_t>::header;

// The upper halves of words.
template <class L, class Narrow>
inline void narrow_half(L v, Narrow& to, int h) {
  auto half = convert<vec<uint32_t, lanes<L>::n>>(v >> 32);
  __builtin_memcpy(reinterpret_cast<uint32_t*>(&to) + h * lanes<L>::n, &half, sizeof half);
}

template <class E>
int64_t encode_short_line(const Grid& grid, int maxbits, const uint8_t* src, uint8_t* dst, double* bound) {
  using T = Tiles<E, 1>;
  using L = typename T::L;
  using Narrow = vec<uint32_t, 2 * T::N>;
  constexpr int N = T::N, header = Format<uint64_t>::header;
  T tiles{grid};
  Cursor at;
  Extent<L> extent;
  StreamWriter out{dst};
  for (uint64_t left = grid.count(); left;) {
    const int count = left < 2 * N ? left : 2 * N;
    Narrow u[4] = {}, body = {}, some = {};
    L e[2], magnitude[2] = {};
    for (int h = 0; h * N < count; h++) {
      const int n = count - h * N < N ? count - h * N : N;
      L a[4];
      fetch_source<T>(src, at, N);
      tiles.load(at, n, src, [&](int, const L* v) { __builtin_memcpy(a, v, sizeof a); });
      at.advance(grid, n);
      magnitude[h] = largest_magnitude(a);
      extent.add_magnitude(magnitude[h]);
      e[h] = exponent(magnitude[h]);
      L scale = quantise_scale(e[h]);
      for (int i = 0; i < 4; i++) a[i] = quantise(a[i], scale);
      transform_forward<1>(a);
      for (int i = 0; i < 4; i++) narrow_half(negabinary(a[i]), u[i], h);
      narrow_half(magnitude[h] != 0 ? ~L{} : L{}, some, h);
    }
    to_planes<1>(u);
    Complete<Narrow> complete(some, maxbits);
    encode_quads<1>(u, ~some & 4, 0, maxbits - header, quad_tables, &body, complete);
    for (int h = 0; h * N < count; h++) {
      L word = magnitude[h] != 0 ? (e[h] + e[h] + 1) | widen_half<L>(body, h) << header : L{};
      extent.template add_error<1>(e[h], 64 - widen_half<L>(complete.planes, h), magnitude[h]);
      put_line<1>(out, &word, count - h * N < N ? count - h * N : N, maxbits);
    }
    left -= count;
  }
  out.finish();
  return judge<E, 1>(extent, bound);
}

template <class E, int NW, bool Accumulate>
void decode_short_line(const Grid& grid, int maxbits, const uint8_t* payload, uint64_t nbytes, uint8_t* dst) {
  using T = Tiles<E, 1, Accumulate>;
  using L = typename T::L;
  constexpr int N = T::N, header = Format<uint64_t>::header;
  using Narrow = vec<uint32_t, 2 * N>;
  T tiles{grid};
  const LineReader<NW, Narrow> reader(maxbits);
  Cursor at;
  uint64_t pos = 0;
  for (uint64_t left = grid.count(); left; pos += uint64_t(2 * N) * maxbits) {
    int count = left < 2 * N ? left : 2 * N;
    Narrow u[4] = {}, words[NW];
    fetch_target<T>(dst, at, 2 * N);
    reader.get(payload, nbytes, pos, words, count);
    Narrow head = words[0] & ((1u << header) - 1), body[1] = {words[0] >> header};
    if constexpr (NW == 2) body[0] |= words[1] << (32 - header);
    Narrow zeros = decode_coefficients(body, 0, maxbits - header, u);
    Narrow some = body[0] != 0 ? -(head & 1) : Narrow{};
    for (int i = 0; i < 4; i++) u[i] &= some;
    for (int first = 0; first < count; first += N) {
      const int h = first / N;
      L a[4], shift = widen_half<L>(zeros, h);
      for (int i = 0; i < 4; i++) a[i] = widen_half<L>(u[i], h) << 32 >> shift;
      from_coefficients(a, widen_half<L>(head >> 1, h));
      int n = count - first < N ? count - first : N;
      tiles.store(at, n, a, dst);
      at.advance(grid, n);
    }
    left -= count;
  }
}

}  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
