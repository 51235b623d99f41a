// ZFP's payload: blocks of any number of bits, back to back.
#pragma once
#include "../../zfp_planes.h"

namespace compcoll {
namespace CC_LEVEL {
namespace zfp {

// 64 values of 64 bits, and the plane that passes the end.
constexpr int block_words = 64 + 4;

// Writes bits to a stream of 64-bit words at any address.
struct StreamWriter {
  uint8_t* dst;
  uint64_t pending = 0;
  int fill = 0;

  void put(uint64_t value, int n) {  // n <= 64; no bits above the lowest n
    pending |= value << fill;
    if (fill + n >= 64) {
      store(dst, pending);
      dst += 8;
      pending = fill ? value >> (64 - fill) : 0;
      fill -= 64;
    }
    fill += n;
  }
  void put(const uint64_t* words, int n) {
    for (; n >= 64; n -= 64) put(*words++, 64);
    if (n) put(low_bits(*words, n), n);
  }
  void finish() {
    if (fill) put(uint64_t(0), 64 - fill);
  }
};

// Reads nbits bits starting at bit `pos` of the payload, followed by zeros.
inline void extract(const uint8_t* payload, uint64_t pos, int nbits, uint64_t* words) {
  const uint8_t* p = payload + pos / 64 * 8;
  int shift = pos % 64, n = (nbits + 63) / 64;
  for (int i = 0; i < n; i++) {
    words[i] = load<uint64_t>(p + 8 * i) >> shift;
    if (shift && 64 * i + 64 - shift < nbits) words[i] |= load<uint64_t>(p + 8 * i + 8) << (64 - shift);
  }
  words[n - 1] = low_bits(words[n - 1], nbits - 64 * (n - 1));
  for (int i = 0; i < 3; i++) words[n + i] = 0;
}

// Address of nbits bits of the payload starting at bit `begin`, followed by at least 16 bytes: in `copy`, of
// nbits / 8 + 32 bytes, if the payload ends before.
inline const uint8_t* with_room(const uint8_t* payload, uint64_t nbytes, uint64_t begin, uint64_t nbits,
                                uint8_t* copy) {
  uint64_t first = begin / 8, rest = nbytes - first;
  if ((begin + nbits) / 8 + 16 <= nbytes) return payload + first;
  __builtin_memcpy(copy, payload + first, rest);
  __builtin_memset(copy + rest, 0, 16);
  return copy;
}

// Writes blocks in lanes, n words each, to the stream; bits above maxbits are ignored.
template <class L>
inline void put_lanes(StreamWriter& out, const L* words, int n, int count, int maxbits) {
  constexpr int N = lanes<L>::n, bits = 8 * sizeof(typename lanes<L>::word);
  if (n == 1 && count == N && maxbits <= 32) {  // two at a time
    const uint64_t mask = low_bits(~uint64_t(0), maxbits);
    auto v = bits_as<vec<uint64_t, N * bits / 64>>(words[0]);
    if constexpr (bits == 32) {
      v = (v & mask) | (v >> 32 & mask) << maxbits;
      for (int i = 0; i < N / 2; i++) out.put(v[i], 2 * maxbits);
    } else {
      v &= mask;
      for (int i = 0; i < N; i += 2) out.put(v[i] | v[i + 1] << maxbits, 2 * maxbits);
    }
    return;
  }
  for (int lane = 0; lane < count; lane++)
    for (int j = 0, left = maxbits; left > 0; left -= 64) {
      uint64_t v = words[j++][lane];
      if (bits == 32 && j < n) v |= uint64_t(words[j++][lane]) << 32;
      int length = left < 64 ? left : 64;
      out.put(low_bits(v, length), length);
    }
}

// The inverse, starting at bit `pos` of the payload of `nbytes` bytes, with zeros above maxbits.
template <class L>
inline void get_lanes(const uint8_t* payload, uint64_t nbytes, uint64_t pos, L* words, int n, int count,
                      int maxbits) {
  using W = typename lanes<L>::word;
  constexpr int N = lanes<L>::n, bits = 8 * sizeof(W);
  W* w = reinterpret_cast<W*>(words);
  if (count == N && (pos + uint64_t(N) * maxbits) / 8 + 16 <= nbytes) {
    for (int lane = 0; lane < N; lane++, pos += maxbits)
      for (int j = 0; j < n; j++) {
        uint64_t at = pos + j * bits;
        W v = W(load<uint64_t>(payload + at / 8) >> at % 8);
        if (bits == 64) v = (v & 0xffffffff) | load<uint64_t>(payload + at / 8 + 4) >> at % 8 << (bits - 32);
        w[j * N + lane] = v;
      }
    words[n - 1] &= W(low_bits(~uint64_t(0), maxbits - (n - 1) * bits));
    return;
  }
  for (int lane = 0; lane < N; lane++, pos += maxbits) {
    uint64_t block[block_words] = {};
    if (lane < count) extract(payload, pos, maxbits, block);
    for (int j = 0; j < n; j++) w[j * N + lane] = W(block[j * bits / 64] >> (j * bits % 64));
  }
}

}  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
