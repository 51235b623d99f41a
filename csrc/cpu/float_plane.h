// One plane of bytes in its three forms: raw, varying bits, or coded (csrc/float.h).
#pragma once
#include "float_code.h"

namespace compcoll {
namespace CC_LEVEL {
namespace floats {
namespace {

constexpr uint32_t encode_slack = 64;  // bytes that may be written after a chunk
constexpr uint32_t decode_slack = plane_values / 8 + 16;  // bytes that may be read after a chunk

inline uint32_t round_up8(uint32_t n) { return (n + 7) / 8 * 8; }

struct Histogram {
  uint32_t count[256] = {}, total = 0, most = 0;

  // Counts one in `stride` groups of 64 values.
  Histogram(const uint8_t* plane, uint32_t n, uint32_t stride) {
    uint32_t part[4][256] = {};  // in a single histogram, equal bytes in a row would wait for each other
    for (uint32_t i = 0; i < n; i += 64 * stride) {
      uint32_t m = n - i < 64 ? n - i : 64, k = 0;
      for (; k + 4 <= m; k += 4)
        for (int j = 0; j < 4; j++) part[j][plane[i + k + j]]++;
      for (; k < m; k++) part[0][plane[i + k]]++;
      total += m;
    }
    for (int s = 0; s < 256; s++) {
      count[s] = part[0][s] + part[1][s] + part[2][s] + part[3][s];
      most = count[s] > most ? count[s] : most;
    }
  }
  // True if a byte is more common than chance explains.
  bool skewed() const { return most > total / 32 + 2; }
};

// True if coding a sample predicts less than `other` bytes. Mantissas are seldom worth coding, as a small
// sample shows.
inline bool worth_coding(const uint8_t* plane, uint32_t n, uint32_t other, CodeHeader& header) {
  if (!Histogram(plane, n, 4 * sample_stride).skewed()) return false;
  Histogram sample(plane, n, sample_stride);
  if (!sample.skewed()) return false;
  uint64_t bits = make_code_of(sample.count, sample.total, header);
  return bits * n / sample.total / 8 + sizeof header < other - other / 64;
}

inline void encode_bits(const uint8_t* plane, uint32_t n, uint32_t varying, uint8_t* out) {
  uint32_t groups = (n + 63) / 64;
  for (uint32_t g = 0; g < groups; g++, out += 8) {
    Bytes64 v = Bytes64::load(plane + 64 * g);
    uint64_t valid = low_bits(n - 64 * g);
    uint8_t* word = out;
    for (uint32_t left = varying; left; left &= left - 1, word += 8 * groups)
      store<uint64_t>(word, bits_at(v, __builtin_ctz(left)) & valid);
  }
}

// Reads `plane` up to 63 bytes past its n. Sets the header to the chosen form.
inline uint8_t* encode_plane(const uint8_t* plane, uint32_t n, PlaneHeader& h, uint8_t* out, Ahead ahead) {
  uint32_t groups = (n + 63) / 64, in_bits = __builtin_popcount(h.varying) * groups * 8;
  uint32_t other = in_bits < round_up8(n) ? in_bits : round_up8(n);
  CodeHeader header = {};
  uint8_t* end = nullptr;
  if (n > sizeof header && in_bits > groups * 8 && worth_coding(plane, n, other, header)) {
    Code code(header.leaves);
    end = with_depth<uint8_t*>(code.depth,
                               [&](auto d) { return encode_coded<d>(plane, n, header, code, out, ahead); });
  }
  if (end && end < out + other) {
    h = {255, 255};
    for (; (end - out) % 8; end++) *end = 0;
    return end;
  }
  if (in_bits >= round_up8(n)) {
    h = {255, 0};
    memcpy(out, plane, n);
    memset(out + n, 0, round_up8(n) - n);
    return out + round_up8(n);
  }
  encode_bits(plane, n, h.varying, out);
  return out + in_bits;
}

inline void decode_bits(PlaneHeader h, const uint8_t* in, uint32_t n, uint8_t* plane) {
  uint32_t groups = (n + 63) / 64;
  for (uint32_t g = 0; g < groups; g++, in += 8) {
    Bytes64 v = splat(h.base);
    const uint8_t* word = in;
    for (uint32_t left = h.varying; left; left &= left - 1, word += 8 * groups)
      v = v + (spread(load<uint64_t>(word)) & uint8_t(left & -left));
    v.store(plane + 64 * g);
  }
}

// Returns the n bytes: in the payload, or in `scratch` (64 bytes longer); null if damaged.
inline const uint8_t* decode_plane(PlaneHeader h, const uint8_t*& in, const uint8_t* end, uint32_t n,
                                   uint8_t* scratch, Ahead ahead) {
  const uint8_t* begin = in;
  uint64_t have = end - in, need;
  if (h.varying != 255) {
    need = __builtin_popcount(h.varying) * ((n + 63) / 64) * 8;
    if (need > have) return nullptr;
    in += need;
    decode_bits(h, begin, n, scratch);
    return scratch;
  }
  if (h.base != 255) {
    need = round_up8(n);
    if (need > have) return nullptr;
    in += need;
    return begin;
  }
  if (have < sizeof(CodeHeader)) return nullptr;
  auto header = load<CodeHeader>(in);
  Code code(header.leaves);
  need = sizeof header + header.escapes;
  for (uint32_t d = 0; d < code.depth; d++) {
    if (header.open[d] > n) return nullptr;
    need += (header.open[d] + 7) / 8;
  }
  need = (need + 7) / 8 * 8;
  if (!code.complete || need > have) return nullptr;
  in += need;
  bool sound = with_depth<bool>(code.depth, [&](auto d) {
    return decode_coded<d>(header, code, begin + sizeof header, n, scratch, ahead);
  });
  return sound ? scratch : nullptr;
}

}  // namespace
}  // namespace floats
}  // namespace CC_LEVEL
}  // namespace compcoll
