// The plane coder of zfp_quads.h for one thread and blocks of at most 64 bits: a plane is one look-up and a
// handful of instructions.
#pragma once
#include "../zfp_quads.h"
#include "job.cuh"

namespace compcoll {
namespace CC_LEVEL {
namespace cuda {

// Index: 16 n + plane. Entry: the code (bits 0-6), its length (8-10), a 1 that counts planes (22), next n
// (29-31). Lengths and ones are summed with what stands above them, which is cut off at the end.
struct ShortTable {
  static constexpr uint32_t n = 80;
  uint32_t entry[n] = {};
};

constexpr ShortTable make_short_table() {
  ShortTable t;
  const zfp::QuadTables quads = zfp::make_quad_tables();
  for (uint32_t i = 0; i < ShortTable::n; i++) {
    uint32_t n = i / 16, plane = i % 16 | 16, quad = quads.encode[plane >> n];
    uint32_t length = quad >> 8 & 15, code = plane ^ (quad & 127) << n;
    t.entry[i] = (code & ((1u << length) - 1)) | length << 8 | 1u << 22 | quad >> 28 << 29;
  }
  return t;
}

CC_HD uint32_t leading_zeros(uint32_t v) { return uint32_t(__clz(int(v))); }
CC_HD uint32_t leading_zeros(uint64_t v) { return uint32_t(__clzll(static_cast<long long>(v))); }

// Appends the planes of coefficients u, in negabinary and not transposed, to a header in `out`, N words.
// Bits from maxbits on have to be cut off. Returns the lowest complete plane.
template <int N, class L>
CC_HD L encode_short(L* u, bool zero, uint32_t maxbits, const uint32_t* table, uint32_t* out) {
  constexpr uint32_t header = zfp::Format<L>::header, bits = 8 * sizeof(L);
  constexpr uint32_t end = 32 * N;  // pos has this bit as soon as the block is full, because no code has 32
  // The first plane with a 1 takes 3 bits at least, those that follow 2.
  constexpr int most = int(end - header - 2) / 2 + 1, groups = (most + 3) / 4;
  const uint32_t room = maxbits - header, begin = end - room;
  // Planes above the first 1 are a 0 each.
  uint32_t zeros = leading_zeros(u[0] | u[1] | u[2] | u[3]);
  for (int i = 0; i < 4; i++) u[i] <<= zeros % bits;  // nothing to shift where there is no 1
  zfp::to_planes<1>(u);
  if (zero || zeros > room) zeros = room;
  uint32_t pos = begin + zeros, n16 = 0, data[N] = {};
  // Codes come in from the top and push what is there down. Planes below the last one are zeros, which is
  // what the end of a block is filled with.
#pragma unroll
  for (int g = 0; g < groups; g++) {
#pragma unroll
    for (int j = 3; j >= 0; j--) {
      if (pos & end) goto full;
      uint32_t entry = table[(uint32_t(u[j] >> (bits - 4 - 4 * g)) & 15) | n16], length = entry >> 8;
      for (int i = 0; i < N; i++) data[i] = __funnelshift_r(data[i], i + 1 < N ? data[i + 1] : entry, length);
      pos += length;
      n16 = entry >> 25;
    }
  }
full:
  uint32_t count = zeros + (pos >> 14 & 127);
  pos &= 2 * end - 1;
  if (pos > end) count--;
  // Down from the top, and up behind the header: at most end - header bits to the right.
  const uint32_t down = end - (pos - begin), up = header;
  uint32_t moved[N + 1] = {};
  for (uint32_t i = 0; i < N; i++) {
    uint32_t low = data[i], high = i + 1 < N ? data[i + 1] : 0;
    if (N > 1 && down >= 32) low = high, high = 0;
    moved[i] = __funnelshift_r(low, high, down);
  }
  for (uint32_t i = 0; i < N; i++) out[i] |= i ? moved[i] << up | moved[i - 1] >> (32 - up) : moved[i] << up;
  return L(bits - (count < bits ? count : bits));
}

}  // namespace cuda
}  // namespace CC_LEVEL
}  // namespace compcoll
