#include "kernels.h"

#include <cstring>

namespace compcoll {
namespace engine {
namespace {

constexpr uint32_t block = 128;  // threads
// Smallest tile of a look-back (csrc/cuda/scan.cuh).
constexpr uint64_t tile_of_mpc = 1 << 14, tile_of_others = 1 << 12;

uint64_t ceil(uint64_t n, uint64_t parts) { return (n + parts - 1) / parts; }

bool is_float(uint32_t dtype) { return dtype >= FLOAT16; }
uint64_t reals_of(uint32_t dtype, uint64_t n) { return n * (is_complex(dtype) ? 2 : 1); }

// The type of real numbers in kernel names.
std::string real_of(uint32_t dtype) {
  switch (dtype) {
    case FLOAT16: return "f16";
    case BFLOAT16: return "bf16";
    case FLOAT32:
    case COMPLEX64: return "f32";
    default: return "f64";
  }
}

// The type in which elements are added.
std::string element_of(uint32_t dtype) {
  return is_float(dtype) ? real_of(dtype) : "i" + std::to_string(8 * itemsize(dtype));
}

bool is_scaled(const std::string& codec) { return codec == "int8" || codec == "int4" || codec == "fp8"; }

const KernelName checksum = {"frame", "checksum", 16 * block, block, true},
                 seal = {"frame", "seal", 16 * block},  //
    copy = {"raw", "raw_copy", 64 * block};

// Block sizes of zfp with kernels of their own.
bool is_exact(const std::string& real, uint64_t bits) {
  return (bits == 32 && real != "f64") || (bits == 64 && (real == "f32" || real == "f64"));
}

KernelName zfp(const char* verb, const std::string& real, uint64_t bits) {
  uint64_t words = bits ? (bits - 1) / (real == "f64" ? 64 : 32) + 1 : 1;
  if (words == 3) words = 4;
  const std::string size = is_exact(real, bits) ? std::to_string(bits) + "bit" : std::to_string(words);
  return {"zfp", "zfp_" + std::string(verb) + "_" + real + "_" + size, 4 * 512, 512};
}

// Each thread has a block. If the blocks of 128 threads do not fit into shared memory, 64 threads are used.
KernelName zfp_blocks(const std::string& name, const std::string& real, uint32_t ndim) {
  const uint32_t threads = real == "f64" && ndim == 3 ? block / 2 : block;
  return {"zfp_blocks", "zfp_" + name, threads * (ndim == 3 ? 64 : 16)};
}

KernelName one_of(const std::string& codec, const std::string& verb, uint32_t dtype) {
  const std::string real = real_of(dtype), name = codec + "_" + verb + "_" + real;
  const bool is_double = real == "f64";
  if (codec == "float") return {codec, name, uint32_t(1) << (is_double ? 12 : real == "f32" ? 13 : 14), 256};
  if (codec == "szp") return {codec, name, uint32_t(tile_of_others)};
  return {"blockscale", name, (is_double ? 256u : 512u) * block / 32};
}

// A number of bits has its own kernels if differences are to neighbours and rounding is to nearest.
KernelName bfp(const std::string& verb, uint32_t dtype, uint64_t param) {
  const std::string real = real_of(dtype), name = "bfp_" + verb + "_" + real;
  const uint64_t bits = param & 0xFF;
  if (real == "f64") return {"bfp", name, 2048 * block / 32};
  if (bits < 2 || bits > 24 || param != (bits | 1 << 8)) return {"bfp", name, 1024 * block / 32};
  return {"bfp-" + real + "-" + std::to_string(bits), name + "_" + std::to_string(bits), 1024 * block / 32};
}

KernelName mpc(const std::string& verb, uint32_t dtype) {
  const uint32_t bits = real_nbytes(dtype) == 8 ? 64 : 32;
  const std::string kind = verb == "decode_add" ? element_of(dtype) : std::to_string(bits);
  return {"mpc", "mpc_" + verb + "_" + kind, 512 * bits};
}

bool has_kernels(const std::string& codec, uint32_t dtype) {
  if (!itemsize(dtype)) return false;
  if (codec == "mpc" || codec == "raw") return true;
  return is_float(dtype) &&
         (is_scaled(codec) || codec == "bfp" || codec == "szp" || codec == "zfp" || codec == "float");
}

int64_t bfp_nbytes(uint64_t n, uint64_t word, uint64_t param) {
  const uint64_t bits = param & 0xFF, dim = param >> 8 & 0xFF;
  if (bits < 2 || bits > (word == 8 ? 52 : 24) || dim < 1 || dim > 32 || param >> 33 ||
      (param >> 16 & 0xFFFF))
    return -1;
  const uint64_t tiles = n / (256 * word), rest = n % (256 * word);
  const uint64_t rows = tiles * bits + ceil(2 * ceil(rest, 64) * bits, 8 * word);
  return int64_t(32 * word * rows + word * (ceil(2 * ceil(n, 64), word) + dim * (tiles + (rest > 0))));
}

}  // namespace

std::string name_of(uint64_t packed) {
  char text[9] = {};
  memcpy(text, &packed, 8);
  return text;
}

KernelNames encoders(const std::string& codec, uint32_t dtype, const uint64_t* params, uint32_t ndim) {
  if (!has_kernels(codec, dtype)) return {};
  if (codec == "raw") return {copy, seal};
  if (codec == "mpc") return {mpc("encode", dtype)};
  const std::string real = real_of(dtype);
  if (codec == "zfp" && ndim > 1) {
    const std::string dims = std::to_string(ndim) + "d";
    KernelNames found;
    if (params[0] % 32) found.push_back(zfp_blocks("clear_" + dims, real, ndim));
    found.push_back(zfp_blocks("encode_" + dims + "_" + real, real, ndim));
    found.push_back(seal);
    return found;
  }
  if (codec == "zfp") return {zfp("encode", real, params[0])};
  if (codec == "bfp") return {bfp("encode", dtype, params[0])};
  if (codec == "float") return {one_of(codec, "encode", dtype), seal};
  if (codec == "szp" && params[1])
    return {{"szp", "szp_range_" + real, 16 * block}, one_of(codec, "encode", dtype)};
  return {one_of(codec, "encode", dtype)};
}

KernelNames decoders(const std::string& codec, uint32_t dtype, const uint64_t* params, bool adds,
                     uint32_t ndim) {
  if (!has_kernels(codec, dtype)) return {};
  const char* verb = adds ? "decode_add" : "decode";
  const std::string real = real_of(dtype);
  if (codec == "raw" && adds) return {checksum, {"raw", "raw_decode_add_" + element_of(dtype), 64 * block}};
  if (codec == "raw") return {checksum, copy};
  if (codec == "mpc") return {checksum, mpc(verb, dtype)};
  if (codec == "zfp" && ndim > 1) {
    const std::string dims = std::to_string(ndim) + "d_";
    return {checksum, zfp_blocks(verb + ("_" + dims) + real, real, ndim)};
  }
  // Kernels that also form the checksum need no other kernel.
  if (codec == "bfp") return {bfp(verb, dtype, params[0])};
  if (codec == "zfp" && is_exact(real, params[0])) return {zfp(verb, real, params[0])};
  if (codec == "zfp") return {checksum, zfp(verb, real, params[0])};
  if (codec == "float" || codec == "szp") return {checksum, one_of(codec, verb, dtype)};
  return {one_of(codec, verb, dtype)};
}

KernelNames adders(const std::string& codec, uint32_t dtype) {
  if (codec != "szp" || !is_float(dtype)) return {};
  return {one_of(codec, "sum", dtype)};
}

KernelNames converters(uint32_t from, uint32_t to) {
  auto is_half = [](uint32_t dtype) { return dtype == FLOAT16 || dtype == BFLOAT16; };
  if (to == FLOAT32 && is_half(from)) return {{"raw", "raw_widen_" + real_of(from), 4 * block}};
  if (from == FLOAT32 && is_half(to)) return {{"raw", "raw_round_" + real_of(to), 4 * block}};
  return {};
}

KernelNames largest_kernel(uint32_t dtype) { return {{"largest", "largest_" + real_of(dtype), 16 * block}}; }

KernelNames copying_kernel() { return {copy}; }

uint64_t units(const std::string& codec, uint64_t n, uint64_t nbytes) {
  return codec == "mpc" || codec == "raw" ? nbytes : n;
}

uint64_t scratch_nbytes(const std::string& codec, uint64_t units, uint64_t words) {
  const uint64_t tile = codec == "mpc"                       ? tile_of_mpc
                        : codec == "szp" || codec == "float" ? tile_of_others
                                                             : 0;
  return tile ? 8 + 8 * words * ceil(units, tile) : 0;
}

int64_t payload_nbytes(const std::string& codec, uint32_t dtype, uint64_t n, const uint64_t* params) {
  const uint64_t reals = reals_of(dtype, n), real = real_nbytes(dtype), first = params[0];
  if (codec == "raw") return first || params[1] ? -1 : int64_t(reals * real);
  if (codec == "zfp") {
    const uint64_t least = real == 8 ? 12 : 9, most = real == 8 ? 256 : 128;
    if (first < least || first > most || params[1]) return -1;
    return int64_t(8 * ceil(ceil(reals, 4) * first, 64));
  }
  if (codec == "bfp") return bfp_nbytes(reals, real == 8 ? 8 : 4, first);
  const uint64_t size = uint32_t(first);
  if (!is_scaled(codec) || (size != 32 && size != 64 && size != 128 && size != 256) || first >> 33) return -1;
  return int64_t(ceil(reals, size) * (real > 4 ? real : 4) + (codec == "int4" ? ceil(reals, 2) : reals));
}

bool is_size_sound(const Header& h) {
  const std::string codec = name_of(h.codec);
  const uint64_t real = real_nbytes(h.dtype);
  if (h.nbytes() >= most_kernel_nbytes) return false;
  if (codec == "zfp" && h.ndim > 1) {
    // The kernels of zfp count values in 32 bits.
    const uint64_t word = real == 8 ? 64 : 32, least = real == 8 ? 12 : 9;
    uint64_t blocks = 1, most = word;
    for (uint32_t i = 0; i < h.ndim; i++) {
      blocks *= ceil(h.shape[i] * (i + 1 == h.ndim && is_complex(h.dtype) ? 2 : 1), 4);
      most *= 4;
    }
    if (h.params[0] < least || h.params[0] > most || h.params[1]) return false;
    return h.payload_nbytes == 8 * ceil(blocks * h.params[0], 64);
  }
  if (codec == "float") return h.params[0] == 1 && !h.params[1];
  if (codec == "szp") return h.payload_nbytes >= 4 * ceil(ceil(reals_of(h.dtype, h.size()), 32), 4);
  if (codec == "mpc") {
    const uint64_t word = real == 8 ? 8 : 4;
    if (h.params[0] < 1 || h.params[0] > 32 || h.params[1]) return false;
    return h.payload_nbytes >= 8 + word * ceil(ceil(h.nbytes(), word), 8 * word);
  }
  return int64_t(h.payload_nbytes) == payload_nbytes(codec, h.dtype, h.size(), h.params);
}

void job_params(const std::string& codec, uint32_t dtype, uint32_t ndim, const uint64_t* shape,
                const uint64_t* params, uint64_t* words) {
  words[0] = params[0], words[1] = params[1];
  if (codec == "zfp" && ndim > 1)
    words[1] = shape[ndim - 1] * (is_complex(dtype) ? 2 : 1) | shape[ndim - 2] << 32;
}

}  // namespace engine
}  // namespace compcoll
