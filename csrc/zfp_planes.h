// ZFP's embedded coder for one block: the bit planes of `size` coefficients, most significant first. With n
// the number of leading coefficients that have a bit in a higher plane, a plane is coded as its first n bits;
// then, while n < size, a bit that tells whether any 1 is left, and if so, the bits up to and including the
// next 1 (the last coefficient's 1 is implied), which advances n past it.
#pragma once
#include "zfp.h"
#if defined(__BMI2__) && !defined(__CUDACC__)
#include <immintrin.h>
#endif

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

// Writes bits to consecutive words, least significant first.
struct BitWriter {
  uint64_t* word;
  uint64_t pending = 0;
  int fill = 0;  // bits in `pending`, 0 to 63

  CC_HD void put(uint64_t value, int n) {  // n <= 64; no bits above the lowest n
    pending |= value << fill;
    if (fill + n >= 64) {
      *word++ = pending;
      pending = fill ? value >> (64 - fill) : 0;
      fill -= 64;
    }
    fill += n;
  }
};

// 64 bits starting at bit `pos`.
CC_HD uint64_t peek(const uint64_t* words, uint64_t pos) {
  const uint64_t* p = words + (pos >> 6);
  uint32_t shift = pos & 63;
  return p[0] >> shift | p[1] << 1 << (63 - shift);
}

// Appends planes until `budget` bits are reached or exceeded by less than 2 * size. plane(k) is plane k of
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

// Reads one plane starting at bit `pos` < end; the words hold at least 2 * size zeros from bit `end` on.
template <int size>
CC_HD uint64_t decode_plane(const uint64_t* words, uint64_t& pos, uint64_t end, uint64_t& n) {
  uint64_t x = low_bits(peek(words, pos), n);
  pos += n;
  while (n < size) {
    uint64_t w = peek(words, pos);
    if (!(w & 1)) {
      pos++;
      break;
    }
    w >>= 1;
    uint64_t room = size - 1 - n, zeros = w ? trailing_zeros(w) : 64;
    if (zeros > room) zeros = room;
    pos += 1 + zeros + (zeros < room);
    // If a scan reaches the end, its 1 stays at that position.
    if (pos > end) zeros -= pos - end;
    x |= uint64_t(1) << (n + zeros);
    n += zeros + 1;
  }
  return x;
}

#if defined(__BMI2__) && !defined(__CUDACC__)
// Like decode_plane for 64 coefficients, but without a loop over their 1s. After the first test, a 0 stands
// for itself, and a 1 is followed by the next test. So the first run of 1s of odd length ends the plane, and
// every second 1 of a run is a test. A borrow runs through the 1s of a run, so a subtraction gives their
// parity.
CC_HD uint64_t decode_plane64(const uint64_t* words, uint64_t& pos, uint64_t end, uint64_t& n) {
  constexpr uint64_t odd = 0xaaaaaaaaaaaaaaaa, seen = ~uint64_t(0) >> 8;
  uint64_t x = _bzhi_u64(peek(words, pos), n);
  if (n == 64) {
    pos += 64;
    return x;
  }
  pos += n;
  uint64_t w = load<uint64_t>(reinterpret_cast<const char*>(words) + (pos >> 3)) >> (pos & 7);
  const uint64_t some = -(w & 1);
  uint64_t data = 0, got = 0, left = 63 - n, at = pos;
  for (;;) {  // repeats only if a plane has many new 1s
    // Sees 56 bits after the test; the last one may be a 1 whose test is not among them.
    uint64_t s = w >> 1;
    uint64_t tests = ((s << 1 | odd) - s) ^ odd ^ s;
    uint64_t ends = tests & ~s & seen;
    uint64_t places = _bzhi_u64(~tests & (seen >> 1), _tzcnt_u64(ends));
    uint64_t count = _mm_popcnt_u64(places);
    uint64_t next = _pext_u64(s, places);
    if (__builtin_expect(count < left && !ends && some, 0)) {
      data |= next << got;
      got += count;
      left -= count;
      at += count + _mm_popcnt_u64(next);
      w = load<uint64_t>(reinterpret_cast<const char*>(words) + (at >> 3)) >> (at & 7);
      continue;
    }
    uint64_t implied = count > left || !ends;
    count = implied ? left : count;
    next = _bzhi_u64(next, count);
    at += count + _mm_popcnt_u64(next);
    pos += 1 + (some & (at - pos));
    uint64_t over = pos > end ? pos - end : 0;  // the scan has reached the end
    data |= next << got | implied << ((got + left - over) & 63);
    x |= (data & some) << n;
    n += some & (got + count + implied);
    return x;
  }
}
#else
CC_HD uint64_t decode_plane64(const uint64_t* words, uint64_t& pos, uint64_t end, uint64_t& n) {
  return decode_plane<64>(words, pos, end, n);
}
#endif

}  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
