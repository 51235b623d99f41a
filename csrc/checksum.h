// Checksum of a payload: s = sum over i of mix(w[i] + i * GOLDEN) mod 2^32, where w are the payload's 32-bit
// little-endian words, the last one zero-padded. mix() is a bijection, so any change within one word is
// detected; any other change is missed with probability 2^-32. The sum has no order, so vector lanes and GPU
// threads may compute it in any order. The multipliers are those of Murmur3's finaliser.
#pragma once
#include "lanes.h"

namespace compcoll {
namespace CC_LEVEL {

template <class L>
CC_HD L checksum_mix(L v) {
  v *= 0x85ebca6bu;
  v ^= v >> 15;
  v *= 0xc2b2ae35u;
  v ^= v >> 16;
  return v;
}

#if !defined(__CUDACC__)
inline uint32_t checksum(const uint8_t* p, uint64_t nbytes) {
  constexpr uint32_t golden = 0x9e3779b9u;
  constexpr int n = vector_nbytes / 4;
  using L = vec<uint32_t, n>;
  L index, sum = {}, sum2 = {};
  for (int i = 0; i < n; i++) index[i] = i * golden;
  uint64_t i = 0, words = nbytes / 4;
  for (; i + 2 * n <= words; i += 2 * n, index += 2 * n * golden) {
    sum += checksum_mix<L>(load<L>(p + 4 * i) + index);
    sum2 += checksum_mix<L>(load<L>(p + 4 * i + sizeof(L)) + (index + n * golden));
  }
  sum += sum2;
  uint32_t s = 0;
  for (int k = 0; k < n; k++) s += sum[k];
  for (; i < words; i++) s += checksum_mix<uint32_t>(load<uint32_t>(p + 4 * i) + uint32_t(i) * golden);
  if (nbytes % 4) {
    uint32_t w = 0;
    __builtin_memcpy(&w, p + 4 * i, nbytes % 4);
    s += checksum_mix<uint32_t>(w + uint32_t(i) * golden);
  }
  return s;
}
#endif

}  // namespace CC_LEVEL
}  // namespace compcoll
