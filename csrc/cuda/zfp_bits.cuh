// One thread's bits of a block in the stream, and the plane coder of zfp_planes.h on top of them.
#pragma once
#include "../zfp_planes.h"
#include "zfp_column.cuh"

namespace compcoll {
namespace CC_LEVEL {
namespace cuda {

// Writes the words of a block. A word that blocks share is combined with atomics, and has to be 0 before.
struct BlockWriter {
  uint32_t* word;
  uint32_t pending = 0, fill, left;
  bool shared;  // `word` also has another block's bits

  CC_HD BlockWriter(uint32_t* stream, uint64_t begin, uint32_t maxbits)
      : word(stream + begin / 32), fill(begin % 32), left(maxbits), shared(fill != 0) {}

  CC_HD void emit() {
    if (shared) atomicOr(word, pending);
    else *word = pending;
    word++, shared = false;
  }
  // Appends up to 32 bits, with zeros above them; bits after the block's end are dropped.
  CC_HD void put(uint32_t value, uint32_t n) {
    if (n >= left) {
      if (left < 32) value &= (1u << left) - 1;
      n = left;
    }
    left -= n;
    pending |= value << fill;
    if (fill + n >= 32) {
      emit();
      pending = fill ? value >> (32 - fill) : 0;
    }
    fill = (fill + n) % 32;
  }
  CC_HD void put(uint64_t value, uint32_t n) {
    put(uint32_t(value), n < 32 ? n : 32);
    if (n > 32) put(uint32_t(value >> 32), n - 32);
  }
  CC_HD void finish() {
    while (left) put(0u, 32);
    if (fill) shared = true, emit();
  }
};

template <class P>
CC_HD P low_plane(P v, uint32_t n) {
  return n < 8 * sizeof(P) ? v & ((P(1) << n) - 1) : v;
}

// Writes the planes of a column until the block is full. Returns the lowest complete plane.
template <class C>
CC_HD int write_planes(const C& column, BlockWriter& out) {
  using P = typename C::Plane;
  constexpr uint32_t size = C::size;
  const uint32_t room = out.left;
  uint32_t n = 0, used = 0;
  for (int k = C::bits - 1; k >= 0; k--) {
    if (used >= room) return used == room ? k + 1 : k + 2;
    P x = column.plane(k), code = low_plane(x, n);
    uint32_t filled = n;
    const auto append = [&](P bits, uint32_t length) {
      if (size > 32 && filled + length > 64) {  // a plane of 16 has at most 31 bits
        out.put(code, filled);
        used += filled, code = 0, filled = 0;
      }
      code |= bits << filled;
      filled += length;
    };
    x = n < size ? x >> n : 0;
    while (n < size) {
      if (!x) {
        append(0, 1);
        break;
      }
      const uint32_t zeros = lowest_one(x), implied = n + zeros == size - 1;
      append(implied ? P(1) : P(P(1) | P(2) << zeros), zeros + 2 - implied);
      n += zeros + 1;
      x = x >> zeros >> 1;
    }
    out.put(code, filled);
    used += filled;
  }
  return used > room ? 1 : 0;
}

// Reads the bits of a block, followed by zeros.
struct BlockReader {
  const uint32_t* words;
  uint64_t count;  // words to the end of the payload
  uint32_t begin, end;

  CC_HD BlockReader(const uint32_t* stream, uint64_t n, uint64_t bit, uint32_t maxbits)
      : words(stream + bit / 32), count(n - bit / 32), begin(bit % 32), end(maxbits) {}

  CC_HD uint32_t word(uint32_t i) const { return i < count ? words[i] : 0; }
  // The bits starting at bit `pos` of the block.
  CC_HD uint32_t peek(uint32_t pos, uint32_t) const {
    if (pos >= end) return 0;
    const uint32_t at = begin + pos;
    return low_plane(__funnelshift_r(word(at / 32), word(at / 32 + 1), at), end - pos);
  }
  CC_HD uint64_t peek(uint32_t pos, uint64_t) const {
    return peek(pos, 0u) | uint64_t(peek(pos + 32, 0u)) << 32;
  }
};

// Reads one plane at bit `pos`, and advances it; n: number of coefficients that have a bit in a higher plane.
template <uint32_t size, class P>
CC_HD P read_plane(const BlockReader& in, uint32_t& pos, uint32_t& n) {
  P x = low_plane(in.peek(pos, P()), n);
  pos += n;
  if (n == size) return x;
  P w = in.peek(pos, P());  // enough for 16 coefficients
  uint32_t held = 8 * sizeof w;
  while (n < size) {
    if (size > 32 && held < size - n) w = in.peek(pos, P()), held = 8 * sizeof w;
    if (!(w & 1)) {
      pos++;
      break;
    }
    const P rest = w >> 1;
    const uint32_t room = size - 1 - n;
    uint32_t zeros = rest ? lowest_one(rest) : 64;
    if (zeros > room) zeros = room;
    const uint32_t length = 1 + zeros + (zeros < room);
    w = rest >> (length - 1), held -= length, pos += length;
    // If a scan reaches the end, its 1 stays at that position.
    if (pos > in.end) zeros -= pos - in.end;
    x |= P(1) << (n + zeros);
    n += zeros + 1;
  }
  return x;
}

}  // namespace cuda
}  // namespace CC_LEVEL
}  // namespace compcoll
