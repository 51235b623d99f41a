// The words of one block of `delta` as runs of bits, and back: csrc/delta.h. Arrays have room for 32 more
// values.
#pragma once
#include <cstring>
#include <utility>

#include "compact.h"

namespace compcoll {
namespace CC_LEVEL {
namespace deltas {

template <class V>
constexpr int lanes_of = vector_nbytes / int(sizeof(V));
template <class V>
constexpr uint32_t all_lanes = (1u << lanes_of<V>)-1;
template <class V>
using Lanes = vec<V, lanes_of<V>>;

// Bit i is 1 if lane i is not zero.
template <class V>
CC_HD uint32_t mask_of(Lanes<V> v) {
#if defined(__AVX2__)
  return nonzero(v);
#else
  uint32_t mask = 0;
  for (int i = 0; i < lanes_of<V>; i++) mask |= uint32_t(v[i] != 0) << i;
  return mask;
#endif
}

// Sets the bits of `value` in the lanes of a mask.
template <class V>
CC_HD Lanes<V> set_in(Lanes<V> v, uint32_t mask, V value) {
#if defined(__AVX512BW__)
  if constexpr (sizeof(V) == 4)
    return Lanes<V>(
        _mm512_mask_or_epi32(__m512i(v), __mmask16(mask), __m512i(v), _mm512_set1_epi32(int(value))));
  else
    return Lanes<V>(
        _mm512_mask_or_epi64(__m512i(v), __mmask8(mask), __m512i(v), _mm512_set1_epi64(int64_t(value))));
#else
  Lanes<V> bit;
  for (int i = 0; i < lanes_of<V>; i++) bit[i] = V(1) << i;
  return v | (Lanes<V>((bit & V(mask)) != 0) & value);
#endif
}

// Stores 32 zeros without a loop, which compilers turn into a memset, and that into rep stos, which is slow
// for so few.
template <class V, int... k>
CC_HD void clear(V* p, std::integer_sequence<int, k...>) {
  (store(p + k * lanes_of<V>, Lanes<V>{}), ...);
}
template <class V>
CC_HD void clear32(V* p) {
  clear(p, std::make_integer_sequence<int, 32 / lanes_of<V>>());
}

CC_HD uint64_t bytes_of(uint64_t bits) { return (bits + 7) / 8; }

// A run of n bits at `out`, where f(i) gives the 32 bits from i on. Writes up to 3 bytes more.
template <class F>
CC_HD uint8_t* put_run(uint8_t* out, uint32_t n, F f) {
  for (uint32_t i = 0; i < n; i += 32) store<uint32_t>(out + i / 8, f(i));
  return out + bytes_of(n);
}

// 32 bits from bit i of a run of n bits, with zeros after its end; i < n.
CC_HD uint32_t take_bits(const uint8_t* in, uint32_t i, uint32_t n) {
  uint32_t bits = load<uint32_t>(in + i / 8);
  return n - i < 32 ? bits & ((1u << (n - i)) - 1) : bits;
}

// Concatenated masks of `f` applied to the vectors of 32 values starting at p.
template <class V, class F>
CC_HD uint32_t masks32(const V* p, F f) {
  uint32_t mask = 0;
  for (int k = 0; k < 32; k += lanes_of<V>) mask |= mask_of<V>(f(load<Lanes<V>>(p + k))) << k;
  return mask;
}

// u: n values, then zeros up to a multiple of 32. u is overwritten.
template <class V>
uint8_t* encode_values(V* u, uint32_t n, uint32_t r, uint8_t* out) {
  const uint64_t stride = bytes_of(n);
  for (uint32_t i = 0; i < n; i += 32) {
    Lanes<V> v[32 / lanes_of<V>];
    for (int k = 0; k < 32 / lanes_of<V>; k++) v[k] = load<Lanes<V>>(u + i + k * lanes_of<V>);
    for (uint32_t plane = 0; plane < r; plane++) {
      uint32_t bits = 0;
      for (int k = 0; k < 32 / lanes_of<V>; k++)
        bits |= mask_of<V>(v[k] & (V(1) << plane)) << k * lanes_of<V>;
      uint8_t* at = out + plane * stride + i / 8;
      if (n - i >= 32) store(at, bits);
      else memcpy(at, &bits, bytes_of(n - i));
    }
  }
  out += r * stride;
  for (uint32_t i = 0; i < n; i += lanes_of<V>) store(u + i, (load<Lanes<V>>(u + i) >> r) + 1);
  clear32(u + n);
  while (n) {
    uint8_t* kept = reinterpret_cast<uint8_t*>(u);
    out = put_run(out, n, [&](uint32_t i) {
      uint32_t mask = 0;
      for (int k = 0; k < 32; k += lanes_of<V>) {
        auto v = load<Lanes<V>>(u + i + k);
        mask |= store_nonzero<V>(v & Lanes<V>(v > 1), kept) << k;
      }
      return mask;
    });
    n = uint32_t((kept - reinterpret_cast<uint8_t*>(u)) / sizeof(V));
    clear32(u + n);
    out = put_run(out, n, [&](uint32_t i) {
      uint32_t mask = masks32(u + i, [](auto v) { return v & 1; });
      for (int k = 0; k < 32; k += lanes_of<V>) store(u + i + k, load<Lanes<V>>(u + i + k) >> 1);
      return mask;
    });
  }
  return out;
}

inline uint32_t count_bits(const uint8_t* in, uint32_t n) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < n; i += 32) count += uint32_t(__builtin_popcount(take_bits(in, i, n)));
  return count;
}

// The inverse, into u. Returns the end of the runs, or null if no encoder can have written them. Reads up to
// 3 bytes after `end`. `other` has as much room as u.
template <class V>
const uint8_t* decode_values(const uint8_t* in, const uint8_t* end, uint32_t n, uint32_t r, V* u, V* other) {
  constexpr uint32_t bits = 8 * sizeof(V);
  struct Level {
    const uint8_t *more, *low;
    uint32_t n;
  } levels[bits + 1];
  const uint8_t* planes = in;
  if (uint64_t(end - in) < r * bytes_of(n)) return nullptr;
  in += r * bytes_of(n);
  uint32_t depth = 0;
  for (uint32_t left = n; left; depth++) {
    if (depth == bits + 1 || uint64_t(end - in) < bytes_of(left)) return nullptr;
    uint32_t next = count_bits(in, left);
    if (uint64_t(end - in) < bytes_of(left) + bytes_of(next)) return nullptr;
    levels[depth] = {in, in + bytes_of(left), left};
    in += bytes_of(left) + bytes_of(next);
    left = next;
  }
  // From the last values to all of them: `from` has the values of the next level, `to` receives this level's.
  V *from = depth % 2 ? other : u, *to = depth % 2 ? u : other;
  clear32(from);
  for (uint32_t k = depth, behind = 0; k-- > 0; behind = levels[k].n) {
    const Level& level = levels[k];
    for (uint32_t i = 0; i < behind; i += 32) {
      uint32_t low = take_bits(level.low, i, behind);
      for (int j = 0; j < 32; j += lanes_of<V>)
        store(from + i + j, set_in<V>(load<Lanes<V>>(from + i + j) << 1, low >> j, 1));
    }
    const uint8_t* packed = reinterpret_cast<uint8_t*>(from);
    for (uint32_t i = 0; i < level.n; i += 32) {
      uint32_t more = take_bits(level.more, i, level.n);
      for (int j = 0; j < 32; j += lanes_of<V>) {
        uint32_t mask = more >> j & all_lanes<V>;
        store(to + i + j, set_in<V>(load_nonzero<V, Lanes<V>>(mask, packed), ~mask, 1));
      }
    }
    V* both = from;
    from = to;
    to = both;
  }
  const uint64_t stride = bytes_of(n);
  for (uint32_t i = 0; i < n; i += 32) {
    Lanes<V> v[32 / lanes_of<V>];
    for (int k = 0; k < 32 / lanes_of<V>; k++) v[k] = (load<Lanes<V>>(u + i + k * lanes_of<V>) - 1) << r;
    for (uint32_t plane = 0; plane < r; plane++) {
      uint32_t bits = load<uint32_t>(planes + plane * stride + i / 8);  // bits after the end are ignored
      for (int k = 0; k < 32 / lanes_of<V>; k++)
        v[k] = set_in<V>(v[k], bits >> k * lanes_of<V>, V(1) << plane);
    }
    for (int k = 0; k < 32 / lanes_of<V>; k++) store(u + i + k * lanes_of<V>, v[k]);
  }
  return in;
}

// -- the nonzero words, a bit for each

inline uint8_t* encode_sparse(const uint64_t* map, uint32_t words, uint8_t* out) {
  uint8_t *any = out, which[64], bytes[8 * 64 + 8];
  memset(any, 0, words / 8);
  uint32_t n = 0, n_bytes = 0;
  for (uint32_t i = 0; i < words; i++) {
    uint32_t mask;
    store(bytes + n_bytes, pack_bytes(map[i], mask));
    n_bytes += uint32_t(__builtin_popcount(mask));
    which[n] = uint8_t(mask);
    n += mask != 0;
    any[i / 8] |= uint8_t((mask != 0) << i % 8);
  }
  out += words / 8;
  memcpy(out, which, n);
  memcpy(out + n, bytes, n_bytes);
  return out + n + n_bytes;
}

// Null if the bytes end too early. Reads up to 8 bytes after `end`.
inline const uint8_t* decode_sparse(const uint8_t* in, const uint8_t* end, uint64_t* map, uint32_t words) {
  if (end - in < int64_t(words / 8)) return nullptr;
  const uint8_t* any = in;
  in += words / 8;
  uint32_t n = 0;
  for (uint32_t i = 0; i < words / 8; i++) n += uint32_t(__builtin_popcount(any[i]));
  if (end - in < int64_t(n)) return nullptr;
  const uint8_t* which = in;
  in += n;
  for (uint32_t i = 0; i < words; i++) {
    map[i] = 0;
    if (!(any[i / 8] >> i % 8 & 1)) continue;
    const uint32_t bytes = *which++;
    if (end - in < __builtin_popcount(bytes)) return nullptr;
    map[i] = unpack_bytes(load<uint64_t>(in), bytes);
    in += __builtin_popcount(bytes);
  }
  return in;
}

}  // namespace deltas
}  // namespace CC_LEVEL
}  // namespace compcoll
