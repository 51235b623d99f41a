// ZFP's embedded coder for one block: the bit planes of `size` coefficients, most significant first.
// With n the number of leading coefficients that have a bit in a plane above, a plane is coded as its
// first n bits, then, while n < size: a bit that tells whether any 1 is left, and if so, the bits up to
// and with the next 1 (the last coefficient's 1 is implied), which advances n past it.
#pragma once
#include "zfp.h"

namespace compcoll {
namespace CC_LEVEL {
namespace zfp {

CC_HD int trailing_zeros(uint64_t v) {  // v != 0
#ifdef __CUDACC__
  return __ffsll(static_cast<long long>(v)) - 1;
#else
  return __builtin_ctzll(v);
#endif
}

CC_HD uint64_t low_bits(uint64_t v, int n) { return n < 64 ? v & ((uint64_t(1) << n) - 1) : v; }

// Bits to consecutive words, least significant first.
struct BitWriter {
  uint64_t* word;
  uint64_t pending = 0;
  int fill = 0;  // bits in `pending`, 0 to 63

  CC_HD void put(uint64_t value, int n) {  // n <= 64, no bits above them
    pending |= value << fill;
    if (fill + n >= 64) {
      *word++ = pending;
      pending = fill ? value >> (64 - fill) : 0;
      fill -= 64;
    }
    fill += n;
  }
};

// 64 bits from bit `pos` on.
CC_HD uint64_t peek(const uint64_t* words, int pos) {
  const uint64_t* p = words + (pos >> 6);
  int shift = pos & 63;
  return p[0] >> shift | p[1] << 1 << (63 - shift);
}

// Appends planes until `budget` bits are reached or passed, by less than 2 * size. plane(k) is plane k of
// `bits`. Returns the lowest complete plane.
template <int size, class Plane>
CC_HD int encode_planes(BitWriter& out, int budget, int bits, Plane plane) {
  int n = 0, used = 0;
  for (int k = bits - 1; k >= 0; k--) {
    uint64_t x = plane(k);
    out.put(low_bits(x, n), n);
    used += n;
    if (n < size) x >>= n;
    while (n < size) {
      if (!x) {
        out.put(0, 1);
        used++;
        break;
      }
      int zeros = trailing_zeros(x);
      bool implied = n + zeros == size - 1;
      int length = zeros + 2 - implied;
      out.put(implied ? 1 : 1 | uint64_t(2) << zeros, length);
      used += length;
      n += zeros + 1;
      x = x >> zeros >> 1;
    }
    if (used >= budget) return used == budget ? k : k + 1;
  }
  return 0;
}

// Reads planes from bit `pos` on, up to bit `end`; the words hold zeros from there on, 2 * size bits at
// least. deposit(k, x) takes plane k where it may be other than zero.
template <int size, class Deposit>
CC_HD void decode_planes(const uint64_t* words, int pos, int end, int bits, Deposit deposit) {
  int n = 0;
  for (int k = bits - 1; k >= 0 && pos < end; k--) {
    uint64_t x = low_bits(peek(words, pos), n);
    pos += n;
    while (n < size) {
      uint64_t w = peek(words, pos);
      if (!(w & 1)) {
        pos++;
        break;
      }
      int room = size - 1 - n;
      w >>= 1;
      int zeros = w ? trailing_zeros(w) : 64;
      if (zeros > room) zeros = room;
      pos += 1 + zeros + (zeros < room);
      // A scan that meets the end leaves its 1 where it stands.
      if (pos > end) zeros -= pos - end;
      x |= uint64_t(1) << (n + zeros);
      n += zeros + 1;
    }
    deposit(k, x);
  }
}

}  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
