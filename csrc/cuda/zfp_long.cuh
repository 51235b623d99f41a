// The plane coder of zfp_short.cuh for blocks of more than 64 bits, which may hold all planes, followed by
// zeros.
#pragma once
#include "zfp_short.cuh"

namespace compcoll {
namespace CC_LEVEL {
namespace cuda {

// A bit string whose last bit is the lowest of word 0, with zeros above its first bit.
template <int N>
struct BitString {
  uint32_t word[N] = {};

  // Appends the highest bits of `code`; their number is in its 5 lowest bits. filled: number of words with
  // bits afterwards.
  CC_HD void append(uint32_t code, int filled) {
#pragma unroll
    for (int i = N - 1; i > 0; i--)
      if (i < filled) word[i] = __funnelshift_l(word[i - 1], word[i], code);
    word[0] = __funnelshift_l(code, word[0], code);
  }
  // The bits in reverse, from the lowest bit of out[0] up: `offset` zeros, then `length` bits, then zeros.
  CC_HD void reversed(uint32_t length, uint32_t offset, uint32_t* out) const {
    const uint32_t by = 32 * N - length;
    for (int i = 0; i < N; i++) out[i] = reverse_bits(word[N - 1 - i]);
    for (int step = N / 2; step; step /= 2)
      for (int i = 0; i < N; i++) out[i] = by & 32 * step ? (i + step < N ? out[i + step] : 0) : out[i];
    for (int i = 0; i < N; i++) out[i] = __funnelshift_r(out[i], i + 1 < N ? out[i + 1] : 0, by);
    for (int i = N - 1; i >= 0; i--) out[i] = __funnelshift_l(i ? out[i - 1] : 0, out[i], offset);
  }
};

// Codes all planes, before their odd ones are inverted, or those that begin within the `room` bits after the
// header. Codes may extend past the block by less than its header's bits.
template <int N, class L>
CC_HD Coded encode_long(const L* a, uint32_t header, uint32_t room, const PairTable& table, uint32_t* code) {
  constexpr int halves = sizeof(L) / 4;
  BitString<N> string;
  uint32_t index = 0, entry = 0, bits = 0;
  Coded coded = {0, 0, 0};
#pragma unroll
  for (int h = 0; h < halves; h++) {
    if (bits >= room) break;
    uint32_t pairs[4];
    for (int i = 0; i < 4; i++) pairs[i] = uint32_t(a[i] >> (32 * (halves - 1 - h)));
    to_pairs(pairs);
#pragma unroll
    for (int t = 0; t < 16; t++) {
      if (bits >= room) break;
      index = permute_bytes(pairs[3 - t % 4], entry, 0xdd50 | (3 - t / 4));
      entry = table.entry[index];
      string.append(entry, (128 * h + 8 * (t + 1) + 3 + 31) / 32);  // p planes take at most 4 p + 3 bits
      bits += entry & 31, coded.pairs++;
    }
  }
  coded.overshoot = bits > room ? bits - room : 0;
  coded.dropped = (coded.overshoot > 0) + (coded.overshoot > table.second[index]);
  string.reversed(bits, header, code);
  return coded;
}

}  // namespace cuda
}  // namespace CC_LEVEL
}  // namespace compcoll
