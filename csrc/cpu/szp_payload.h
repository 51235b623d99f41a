// The payload of szp (csrc/szp.h) as blocks of 32 integers, written and read without leaving its bounds.
#pragma once
#include <cstring>

#include "planes32.h"

namespace compcoll {
namespace CC_LEVEL {
namespace {

constexpr int n32 = 32 / lanes32;  // vectors of a block
using SignedWords = vec<int32_t, lanes32>;

// A block ready to be written: its codes, its width, and the separate first code.
struct Coded {
  Block z;
  uint32_t first = 0;
  int width = szp_raw;

  Coded() = default;
  Coded(const Block& q, int raw_nbytes) {
    Block plain;
    Words below = {};
    for (int i = 0; i < n32; i++) {
      z.v[i] = szp_zigzag<SignedWords>(q.v[i] - shift_in<1>(below, q.v[i]));
      plain.v[i] = szp_zigzag<SignedWords>(q.v[i]);
      below = q.v[i];
    }
    first = z.v[0][0];
    z.v[0] = clear_first(z.v[0]);
    uint32_t others, all;
    or_of_each(z, plain, others, all);
    width = szp_width(first, others, all, raw_nbytes);
    if (width < int(szp_apart)) z.v[0] |= only_first(first);
    const Words which = Words{} - (width / szp_plain & (width != szp_raw));
    for (int i = 0; i < n32; i++) z.v[i] = which ? plain.v[i] : z.v[i];
  }
};

// Most blocks are whole, so their size is a constant.
template <class T>
void copy_raw(void* dst, const void* src, int nbytes) {
  if (nbytes == 32 * sizeof(T)) memcpy(dst, src, 32 * sizeof(T));
  else memcpy(dst, src, nbytes);
}

constexpr int room = 4 + 128;  // bytes for the planes of any width, and a first code

// The payload while it is written; never writes at or after `end`.
struct Writer {
  uint8_t* widths;
  uint8_t* at;
  uint8_t* end;

  static Writer begin(const Args* args, void* dst, uint64_t n, bool& fits) {
    uint64_t limit = args->capacity < args->nbytes() ? args->capacity : args->nbytes();
    uint64_t head = szp_widths_nbytes(szp_blocks(n));
    uint8_t* d = static_cast<uint8_t*>(dst);
    fits = head <= limit;
    if (fits && head) memset(d + head - 4, 0, 4);
    return {d, d + (fits ? head : 0), d + limit};
  }

  // False if the block does not fit.
  template <class T>
  bool put(const Coded& block, const void* raw, int raw_nbytes) {
    int nbytes = szp_nbytes(block.width, raw_nbytes);
    if (nbytes > end - at) return false;
    *widths++ = uint8_t(block.width);
    if (block.width == szp_raw) copy_raw<T>(at, raw, nbytes);
    else if (end - at >= room) put_all(block, at);
    else {
      uint8_t spare[room];
      put_all(block, spare);
      memcpy(at, spare, nbytes);
    }
    at += nbytes;
    return true;
  }

  // Writes many planes at a time; the next block overwrites the excess.
  static void put_all(const Coded& block, uint8_t* at) {
    const int width = block.width % szp_apart;
    store(at, block.first);
    if (block.width / szp_apart == 1) at += 4;
    for (int g = 0; planes * g < width; g++) put_planes(block.z, g, at + 4 * planes * g);
  }
};

// The payload while it is read; never reads at or after `end`.
struct Reader {
  const uint8_t* widths;
  const uint8_t* at;
  const uint8_t* end;

  static Reader begin(const void* payload, uint64_t nbytes, uint64_t n, bool& sound) {
    uint64_t head = szp_widths_nbytes(szp_blocks(n));
    const uint8_t* p = static_cast<const uint8_t*>(payload);
    sound = head <= nbytes;
    return {p, p + (sound ? head : 0), p + nbytes};
  }

  // The width of the next block, or -1; `block` is set to its address.
  int next(int raw_nbytes, const uint8_t*& block) {
    int width = *widths++, nbytes = szp_nbytes(width, raw_nbytes);
    if (nbytes < 0 || nbytes > end - at) return -1;
    block = at;
    at += nbytes;
    return width;
  }

  void integers(int width, const uint8_t* block, Block& q) const {
    if (end - block >= room) get_all(q, width, block);
    else {
      uint8_t spare[room] = {};
      memcpy(spare, block, szp_nbytes(width, 0));
      get_all(q, width, spare);
    }
    Words sum = {};
    for (int i = 0; i < n32; i++) {
      q.v[i] = szp_unzigzag(q.v[i]);
      if (width >= int(szp_plain)) continue;
      q.v[i] = prefix_sum(q.v[i]) + sum;
      sum = spread_last(q.v[i]);
    }
  }

  static void get_all(Block& q, int width, const uint8_t* block) {
    const bool apart = width / szp_apart == 1;
    for (int i = 0; i < n32; i++) q.v[i] = Words{};
    q.v[0] = only_first(apart ? load<uint32_t>(block) : 0);
    if (apart) block += 4;
    width %= szp_apart;
    for (int g = 0; planes * g < width; g++) get_planes(q, g, width, block + 4 * planes * g);
  }
};

}  // namespace
}  // namespace CC_LEVEL
}  // namespace compcoll
