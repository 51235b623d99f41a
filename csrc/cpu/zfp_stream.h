// ZFP's payload: blocks of any number of bits, back to back.
#pragma once
#include "../zfp_planes.h"

namespace compcoll {
namespace CC_LEVEL {
namespace zfp {

// 64 values of 64 bits and the plane that passes the end.
constexpr int block_words = 64 + 4;

// Bits to a stream of 64-bit words at any address.
struct StreamWriter {
  uint8_t* dst;
  uint64_t pending = 0;
  int fill = 0;

  void put(uint64_t value, int n) {  // n <= 64, no bits above them
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

// nbits bits from bit `pos` of the payload, with zeros behind.
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

}  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
