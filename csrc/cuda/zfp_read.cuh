// The plane decoder of zfp_quads.h for one thread: an automaton that decodes 8 bits of a block per look-up.
// Every block of a launch takes the same number of look-ups, whatever its bits are, so the threads of a warp
// never diverge.
//
// The last look-up ends at the end of the block's bits; no bits after them are read. Bits before the planes
// have been cleared: zeros are empty planes, of which the automaton skips any number.
#pragma once
#include "../zfp.h"
#include "bits.cuh"

namespace compcoll {
namespace CC_LEVEL {
namespace cuda {

// States of the automaton, by the code that it reads next. n: number of coefficients with a 1 in a higher
// plane; n = 3 has the same codes as 4.
namespace reading {
constexpr uint32_t first = 0,       // the first 1 of the block
    own = 1,                        // a bit of a plane's first n: 1 if n = 1, 2 and 3 if n = 2, 4 to 7 if n = 4
    more = 8,                       // the test for another 1 in a plane: 8 and 9 for n = 1 and 2
    scan = 10,                      // the scan for the coefficient of that 1, now at 0, 1 or 2
    states = 13;
}  // namespace reading

struct Reader {
  uint32_t state, planes = 0, row[4] = {};  // planes begun, and their bits of each coefficient

  constexpr explicit Reader(uint32_t state) : state(state) {}

  constexpr void begin_plane() {
    planes++;
    for (uint32_t i = 0; i < 4; i++) row[i] <<= 1;
  }
  // The 1 of a scan stays at the scan's position, in case the bits end there, until the scan advances.
  constexpr void scan_from(uint32_t i) { row[i] ^= 1, state = i < 3 ? reading::scan + i : reading::own + 3; }

  constexpr void take_own(uint32_t n, uint32_t j, uint32_t bit) {
    if (j == 0) begin_plane();
    row[j] ^= bit;
    if (j + 1 < n) state++;
    else state = n == 4 ? reading::own + 3 : reading::more + n - 1;
  }
  constexpr void take(uint32_t bit) {
    using namespace reading;
    if (state == first) {
      begin_plane();
      if (bit) scan_from(0);
    } else if (state < more) {
      const uint32_t n = state < 2 ? 1 : state < 4 ? 2 : 4;
      take_own(n, state - n, bit);
    } else if (state < scan) {
      const uint32_t n = state - more + 1;
      if (bit) scan_from(n);
      else state = n;
    } else {
      const uint32_t i = state - scan;
      if (bit) state = i < 2 ? more + i : own + 6;
      else row[i] ^= 1, scan_from(i + 1);
    }
  }
};

// Index: 256 times the state, plus 8 bits. Entry: number of planes begun (bits 0-7), the next state (8-15),
// then a nibble for each coefficient, to be XORed to its planes after these have been shifted by the number
// begun. If 4 planes begin, the previous one is complete.
struct alignas(16) ReadTable {
  uint32_t entry[256 * reading::states] = {};
};

constexpr ReadTable make_read_table() {
  ReadTable t;
  for (uint32_t i = 0; i < 256 * reading::states; i++) {
    Reader r(i / 256);
    for (uint32_t k = 0; k < 8; k++) r.take(i >> k & 1);
    t.entry[i] = r.planes | r.state << 8;
    for (uint32_t k = 0; k < 4; k++) t.entry[i] |= r.row[k] << (16 + 4 * k);
  }
  return t;
}

// Up to 16 planes, the lowest of which is the last of `planes`, from the lower half of g to their position in
// a word.
CC_HD uint32_t place_planes(uint32_t g, uint32_t planes, uint32_t) {
  return uint32_t((uint64_t(g) << 32) >> (planes < 63 ? planes : 63));
}
CC_HD uint64_t place_planes(uint32_t g, uint32_t planes, uint64_t) {
  const uint32_t down = planes < 127 ? planes : 127;
  return down < 64 ? uint64_t(g) << 1 << (63 - down) : uint64_t(g) >> (down - 64);
}

// Negabinary coefficients of a block that ends with the last word. Its planes follow `before` bits, all 0:
// the header's, and unused bits of the first words.
template <class L, int N>
CC_HD void read_planes(const uint32_t* word, uint32_t before, const ReadTable& table, L* a) {
  uint32_t entry = 0, planes = 0 - before;
  for (int i = 0; i < 4; i++) a[i] = 0;
#pragma unroll
  for (int i = 0; i < N; i++) {
    if (before >= 32u * (i + 1)) {
      planes += 32;
      continue;
    }
    // Halves of coefficients 0 and 2, and of 1 and 3, rotated by 4.
    uint32_t even = 0, odd = 0, sum = i ? 0 : 8;
#pragma unroll
    for (uint32_t k = i ? 0 : 1; k < 4; k++) {  // the header has at least 8 bits
      entry = table.entry[permute_bytes(word[i], entry, 0xdd50 | k)];
      const uint32_t bits = permute_bytes(entry, 0, 0x4342);
      even = __funnelshift_l(even, even, entry) ^ (bits & 0x000f000f);
      odd = __funnelshift_l(odd, odd, entry) ^ (bits & 0x00f000f0);
      sum += entry & 255;
    }
    planes += sum;
    odd = __funnelshift_r(odd, odd, 4);
    a[0] ^= place_planes(even & 0xffff, planes, L());
    a[1] ^= place_planes(odd & 0xffff, planes, L());
    a[2] ^= place_planes(even >> 16, planes, L());
    a[3] ^= place_planes(odd >> 16, planes, L());
  }
}

}  // namespace cuda
}  // namespace CC_LEVEL
}  // namespace compcoll
