// ZFP's 1-D decoder for float64 at low rates: blocks with at most 32 bits after the header have their planes
// in the upper halves of words, and are decoded in 32-bit lanes, twice as many at a time.
#pragma once
#include "line.h"

namespace compcoll {
namespace CC_LEVEL {
namespace zfp {

constexpr int short_line = 32 + Format<uint64_t>::header;

// Half h of the lanes of v, as 64-bit words.
template <class L, class Narrow>
inline L widen_half(const Narrow& v, int h) {
  vec<uint32_t, lanes<L>::n> half;
  __builtin_memcpy(&half, reinterpret_cast<const uint32_t*>(&v) + h * lanes<L>::n, sizeof half);
  return convert<L>(half);
}

template <int NW>
void decode_short_line(const Target<uint64_t, 1>& target, int maxbits, const uint8_t* payload,
                       uint64_t nbytes) {
  constexpr int N = target.N, header = Format<uint64_t>::header;
  using L = Target<uint64_t, 1>::L;
  using Narrow = vec<uint32_t, 2 * N>;
  const LineReader<NW, Narrow> reader(maxbits);
  Cursor at;
  uint64_t pos = 0;
  for (uint64_t left = target.grid.count(); left; pos += uint64_t(2 * N) * maxbits) {
    int count = left < 2 * N ? left : 2 * N;
    Narrow u[4] = {}, words[NW];
    fetch_blocks<true>(target, at, 2 * N);
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
      store_line(target, at, n, a);
      at.advance(target.grid, n);
    }
    left -= count;
  }
}

}  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
