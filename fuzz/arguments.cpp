// What an input stands for: its header as arguments of a codec, its bytes as an array.
#include "harness.h"

#include <algorithm>
#include <cstring>

namespace fuzz {

Header take_header(Bytes& input) {
  Header header = {};
  const uint64_t n = std::min<uint64_t>(input.nbytes, sizeof header);
  if (n) memcpy(&header, input.data, n);
  input = {input.data + n, input.nbytes - n};
  return header;
}

// Small arrays far more often than large ones, up to 5119 elements, and 0.
static uint64_t extent(uint16_t s, uint32_t ndim) {
  if (ndim == 1) return (s & 0x1fff) % (40u << (s >> 13));
  if (ndim == 2) return (s & 0x3fff) % (9u << (s >> 14));
  return (s & 0x3fff) % (5u + 4 * (s >> 14));
}

static uint64_t huge_extent(uint16_t s) { return uint64_t(s % 8 + 1) << (s >> 8) % 17; }

// From 2^-40 to 2^15; such a bound stays as it is.
static uint64_t usual_bound(uint64_t bits) {
  const uint64_t exponent = bits << 1 >> 53, least = 1023 - 40, count = 56;
  const bool usual = exponent >= least && exponent < least + count && !(bits >> 63);
  return usual ? bits : bits << 12 >> 12 | (least + exponent % count) << 52;
}

static void choose_params(const Header& h, int codec, const Args& args, uint64_t* params) {
  params[0] = h.params[0];
  params[1] = h.params[1];
  if (h.flags & PARAMS_AS_THEY_ARE) return;
  if (is(codec, "zfp")) {
    const bool wide = args.dtype == FLOAT64 || args.dtype == COMPLEX128;
    const uint64_t least = wide ? 12 : 9, most = (wide ? 64u : 32u) << 2 * args.ndim;
    params[0] = least + h.params[0] % (most - least + 1);
    params[1] = 0;
  } else if (is(codec, "mpc") || is(codec, "float")) {
    params[0] = is(codec, "mpc") ? 1 + h.params[0] % 32 : 1;
    params[1] = 0;
  } else if (is(codec, "szp")) {  // an absolute bound, or a relative one in the other word
    const int which = h.params[0] ? 0 : 1;
    params[1 - which] = 0;
    params[which] = usual_bound(h.params[which]);
  } else if (is(codec, "bfp")) {
    const bool wide = args.dtype == FLOAT64 || args.dtype == COMPLEX128;
    const uint64_t bits = 2 + h.params[0] % (wide ? 51 : 23), dim = 1 + (h.params[0] >> 8) % 32;
    params[0] = bits | dim << 8 | (h.params[0] >> 16 & 1) << 32;
  } else if (is_blockscale(codec)) {
    params[0] = uint64_t(32) << h.params[0] % 4 | (h.params[0] >> 8 & 1) << 32;
  }
}

Args arguments(const Header& h) {
  const int codec = codec_index(h);
  Args args = {};
  args.dtype = h.dtype & 15;
  const bool any_type = is(codec, "raw") || is(codec, "mpc") || is(codec, "delta") || is(codec, "lossless");
  if (!any_type && !is_float(args.dtype) && !(h.flags & PARAMS_AS_THEY_ARE))
    args.dtype = FLOAT16 + args.dtype % 6;
  args.ndim = 1 + h.ndim % 3;
  for (uint32_t i = 0; i < 3; i++) {
    uint64_t n = h.flags & HUGE_SHAPE ? huge_extent(h.shape[i]) : extent(h.shape[i], args.ndim);
    args.shape[i] = i < args.ndim ? n : 1;
  }
  args.acc_dtype = args.dtype == FLOAT16 || args.dtype == BFLOAT16 ? uint32_t(FLOAT32) : args.dtype;
  choose_params(h, codec, args, args.params);
  return args;
}

// Repeated by doubling what is there.
void repeat(Bytes bytes, uint8_t* dst, uint64_t nbytes) {
  uint64_t have = std::min(bytes.nbytes, nbytes);
  if (!have) return void(nbytes && memset(dst, 0, nbytes));
  memcpy(dst, bytes.data, have);
  for (uint64_t n; have < nbytes; have += n) {
    n = std::min(have, nbytes - have);
    memcpy(dst + have, dst, n);
  }
}

void fill(const Header& h, const Args& args, Bytes bytes, uint8_t* array) {
  const uint64_t nbytes = args.nbytes();
  repeat(bytes, array, nbytes);
  if (!(h.flags & NOISE)) return;
  uint64_t state = h.extra | 1;
  for (uint64_t i = 0; i + 4 <= nbytes; i += 4) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;  // xorshift
    // The low byte of little-endian words far more often than one of the others.
    if (state >> 56 < 200) array[i] ^= uint8_t(state >> 8);
    else if (state >> 56 < 206) array[i + state % 4] ^= uint8_t(state >> 8);
  }
}

}  // namespace fuzz
