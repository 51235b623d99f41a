// The prefix code of a plane: 64 values at a time, one bit of all their codes after another.
#pragma once
#include <cstring>
#include <utility>

#include "../float.h"
#include "bytes64.h"
#include "prefetch.h"

namespace compcoll {
namespace CC_LEVEL {
namespace floats {
namespace {

constexpr uint32_t plane_values = chunk_nbytes / 2;  // for the smallest type

inline uint64_t low_bits(uint32_t n) { return n < 64 ? (uint64_t(1) << n) - 1 : ~uint64_t(0); }

// Tables computed from the lengths of a canonical code.
struct Code {
  uint32_t depth = 0, shortest = 0;     // lengths of the longest and the shortest code
  uint8_t shorter[max_depth + 1] = {};  // number of codes with at most d bits
  uint16_t first[max_depth + 1] = {};   // the first code longer than d bits, in units of 2^-8
  bool complete = false;                // every sequence of bits is a sequence of codes

  explicit Code(const uint8_t* leaves) {
    uint32_t symbols = 0, kraft = 0;
    for (uint32_t d = 0; d < max_depth; d++) {
      symbols += leaves[d];
      kraft += leaves[d] * (128u >> d);
      if (leaves[d]) depth = d + 1;
      if (!shortest) shortest = depth;
      shorter[d + 1] = uint8_t(symbols);
      first[d + 1] = uint16_t(kraft);
    }
    complete = symbols <= max_symbols && kraft == 256;
  }
};

// Codes by byte, as tables for lookup16: a byte's code is at the index of its low nibble, in the table whose
// symbol there is this byte. Exponents in an array are close together, so one or two tables are enough.
struct CodeTables {
  uint32_t n = 0;
  Bytes64 symbol[max_symbols], code[max_symbols], escape;

  CodeTables(const CodeHeader& header) {
    uint8_t symbols[max_symbols][16], codes[max_symbols][16] = {}, used[16] = {};
    uint32_t at = 0;
    for (uint32_t d = 0, i = 0; d < max_depth; d++)
      for (uint32_t k = 0; k < header.leaves[d]; k++, i++, at += 128u >> d) {
        if (i == header.escape) {
          escape = splat(uint8_t(at));
          continue;
        }
        uint8_t nibble = header.symbol[i] & 15, t = used[nibble]++;
        if (t == n) {
          for (int s = 0; s < 16; s++) symbols[t][s] = uint8_t(~s);  // matches no byte with this nibble
          n++;
        }
        symbols[t][nibble] = header.symbol[i];
        codes[t][nibble] = uint8_t(at);
      }
    for (uint32_t t = 0; t < n; t++) symbol[t] = table16(symbols[t]), code[t] = table16(codes[t]);
  }

  Bytes64 find(Bytes64 v) const {
    Bytes64 found = escape;
    for (uint32_t t = 0; t < n; t++)
      found = equal_select(lookup16(symbol[t], v), v, lookup16(code[t], v), found);
    return found;
  }
};

// Writes runs of bits, each plane's starting at a byte of its own; positions count bits from a common start.
struct BitWriter {
  uint8_t* begin;
  // `bits` has zeros above the lowest n. Writes up to 9 bytes.
  void put(uint64_t bits, uint32_t n, uint32_t& at) const {
    uint8_t* p = begin + at / 8;
    uint32_t shift = at % 8;
    store<uint64_t>(p, bits << shift | *p);
    if (n > 56) p[8] = uint8_t(bits >> 1 >> (63 - shift));
    else p[8] = 0;
    at += n;
  }
};

struct BitReader {
  const uint8_t* begin;
  // Returns at least n bits.
  uint64_t get(uint32_t n, uint32_t& at) const {
    const uint8_t* p = begin + at / 8;
    uint32_t shift = at % 8;
    uint64_t bits = load<uint64_t>(p) >> shift;
    if (n > 56) bits |= uint64_t(p[8]) << 1 << (63 - shift);
    at += n;
    return bits;
  }
};

template <uint32_t depth>
uint8_t* encode_coded(const uint8_t* plane, uint32_t n, CodeHeader& header, const Code& code, uint8_t* out,
                      Ahead ahead) {
  constexpr uint32_t room = plane_values / 8 + 16;
  const CodeTables tables(header);
  const uint32_t shortest = code.shortest;
  Bytes64 first[depth];
  for (uint32_t d = 0; d < depth; d++) first[d] = splat(uint8_t(code.first[d]));
  uint8_t bits[depth * room], escaped[plane_values + 64];
  uint32_t at[depth], escapes = 0;
  for (uint32_t d = 0; d < depth; d++) at[d] = 8 * d * room, bits[d * room] = 0;
  const BitWriter writer = {bits};
  for (uint32_t i = 0; i < n; i += 64) {
    uint64_t valid = low_bits(n - i);
    ahead.fetch(i / 64);
    Bytes64 v = tables.find(Bytes64::load(plane + i));
    for (uint64_t m = equal(v, tables.escape) & valid; m; m &= m - 1)
      escaped[escapes++] = plane[i + __builtin_ctzll(m)];
    Bytes64 rest = v;
    for (uint32_t d = 0; d < depth; d++) {
      if (d < shortest) {
        store<uint64_t>(bits + d * room + i / 8, top_bits(rest) & valid);
      } else {
        uint64_t open = at_least(v, first[d]) & valid;
        writer.put(extract(top_bits(rest), open), __builtin_popcountll(open), at[d]);
      }
      rest = rest + rest;
    }
  }
  uint8_t* start = out;
  header.escapes = uint16_t(escapes);
  out += sizeof header;
  for (uint32_t d = 0; d < depth; d++) {
    uint32_t nbits = d < code.shortest ? n : at[d] - 8 * d * room, nbytes = (nbits + 7) / 8;
    header.open[d] = uint16_t(nbits);
    if (uint32_t(out - start) + nbytes + escapes > n) return nullptr;
    memcpy(out, bits + d * room, nbytes);
    out += nbytes;
  }
  memcpy(out, escaped, escapes);
  memcpy(start, &header, sizeof header);
  return out + escapes;
}

template <uint32_t depth>
struct CodeReader {
  const uint8_t *in, *escaped;
  uint32_t shortest, start[depth], at[depth], escapes = 0;
  Bytes64 shorter[depth], symbols, escape;

  CodeReader(const CodeHeader& header, const Code& code, const uint8_t* in)
      : in(in), shortest(code.shortest), symbols(table16(header.symbol)), escape(splat(header.escape)) {
    uint32_t nbytes = 0;
    for (uint32_t d = 0; d < depth; d++) {
      start[d] = at[d] = 8 * nbytes;
      nbytes += (header.open[d] + 7) / 8;
      shorter[d] = splat(code.shorter[d]);
    }
    escaped = in + nbytes;
  }

  // Decodes the next `groups` times 64 values, at i; false if there are more escapes than allowed. Handles
  // one plane of all groups after another, because a single group is a long chain of dependent steps.
  template <uint32_t groups>
  CC_HD bool decode(uint32_t i, uint64_t valid, uint32_t max_escapes, uint8_t* plane) {
    Bytes64 v[groups] = {};
    for (uint32_t d = 0; d < depth; d++) {
      const uint8_t* word = in + start[d] / 8 + i / 8;
      for (uint32_t g = 0; g < groups; g++) {
        if (d < shortest) {
          v[g] = add_bits(v[g] + v[g], load<uint64_t>(word + 8 * g));
        } else {
          uint64_t open = at_least(v[g], shorter[d]) & valid;
          uint64_t bits = BitReader{in}.get(__builtin_popcountll(open), at[d]);
          v[g] = add_bits(v[g] + subtract_to_zero(v[g], shorter[d]), deposit(bits, open));
        }
      }
    }
    for (uint32_t g = 0; g < groups; g++) {
      lookup16(symbols, v[g]).store(plane + i + 64 * g);
      for (uint64_t m = equal(v[g], escape) & valid; m; m &= m - 1) {
        if (escapes == max_escapes) return false;
        plane[i + 64 * g + __builtin_ctzll(m)] = escaped[escapes++];
      }
    }
    return true;
  }
};

template <uint32_t depth>
bool decode_coded(const CodeHeader& header, const Code& code, const uint8_t* in, uint32_t n, uint8_t* plane,
                  Ahead ahead) {
  constexpr uint32_t groups = 4;
  CodeReader<depth> reader(header, code, in);
  uint32_t i = 0, escapes = header.escapes;
  for (; i + 64 * groups <= n; i += 64 * groups) {
    for (uint32_t g = 0; g < groups; g++) ahead.fetch(i / 64 + g);
    if (!reader.template decode<groups>(i, ~uint64_t(0), escapes, plane)) return false;
  }
  for (; i < n; i += 64)
    if (!reader.template decode<1>(i, low_bits(n - i), escapes, plane)) return false;
  bool sound = reader.escapes == escapes;
  for (uint32_t d = 0; d < depth; d++)
    sound = sound && header.open[d] == (d < code.shortest ? n : reader.at[d] - reader.start[d]);
  return sound;
}

// Calls f with the depth as a constant.
template <class R, class F, size_t... d>
R with_depth(uint32_t depth, F f, std::index_sequence<d...>) {
  R result = {};
  ((depth == d + 1 && (result = f(std::integral_constant<uint32_t, d + 1>{}), true)) || ...);
  return result;
}
template <class R, class F>
R with_depth(uint32_t depth, F f) {
  return with_depth<R>(depth, f, std::make_index_sequence<max_depth>{});
}

}  // namespace
}  // namespace floats
}  // namespace CC_LEVEL
}  // namespace compcoll
