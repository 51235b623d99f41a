// Chunk by chunk: values to byte planes and back. How a plane is coded stands in float_plane.h.
#include "../float.h"

#include <cstring>

#include "float_plane.h"
#include "table.h"

namespace compcoll {
namespace CC_LEVEL {
namespace floats {
namespace {

template <uint32_t dtype>
struct Chunk {
  using F = Format<dtype>;
  using Word = typename F::Word;
  using Split = typename F::Split;
  static constexpr uint32_t planes = F::planes, values = chunk_values<dtype>;
  static constexpr uint32_t header_nbytes = (2 * planes + 7) / 8 * 8;
  // No plane takes more than its bytes as they are.
  static constexpr uint32_t max_nbytes = header_nbytes + planes * values;
  uint8_t plane[planes][values + 64];
};

// Values to planes. Returns the bits that vary; `base` gets those that all values have set.
template <uint32_t dtype>
typename Chunk<dtype>::Split split(const uint8_t* __restrict src, uint32_t n, Chunk<dtype>& chunk,
                                   typename Chunk<dtype>::Split& base) {
  using C = Chunk<dtype>;
  typename C::Split all_or = 0, all_and = ~all_or;
  for (uint32_t i = 0; i < n; i++) {
    auto s = C::F::split(load<typename C::Word>(src + i * sizeof(typename C::Word)));
    all_or |= s;
    all_and &= s;
    for (uint32_t p = 0; p < C::planes; p++) chunk.plane[p][i] = uint8_t(s >> 8 * (C::planes - 1 - p));
  }
  for (uint32_t p = 0; p < C::planes; p++) memset(chunk.plane[p] + n, 0, 64);
  base = all_and;
  return all_or ^ all_and;
}

template <uint32_t dtype>
uint8_t* encode_chunk(const uint8_t* src, uint32_t n, uint8_t* out) {
  using C = Chunk<dtype>;
  C chunk;
  typename C::Split base, varying = split<dtype>(src, n, chunk, base);
  uint8_t* header = out;
  memset(header, 0, C::header_nbytes);
  out += C::header_nbytes;
  for (uint32_t p = 0; p < C::planes; p++) {
    uint32_t shift = 8 * (C::planes - 1 - p);
    PlaneHeader h = {uint8_t(varying >> shift), uint8_t(base >> shift)};
    out = encode_plane(chunk.plane[p], n, h, out);
    memcpy(header + 2 * p, &h, 2);
  }
  return out;
}

template <uint32_t dtype, size_t... p>
void join(const uint8_t* const* plane, uint32_t n, uint8_t* __restrict dst, std::index_sequence<p...>) {
  using C = Chunk<dtype>;
  const uint8_t* in[] = {plane[p]...};
  for (uint32_t i = 0; i < n; i++) {
    auto s = ((typename C::Split(in[p][i]) << 8 * (C::planes - 1 - p)) | ...);
    store<typename C::Word>(dst + i * sizeof(typename C::Word), C::F::join(typename C::Split(s)));
  }
}

// `in` may be read up to decode_slack bytes past its end.
template <uint32_t dtype>
bool decode_chunk(const uint8_t* in, uint32_t nbytes, uint32_t n, uint8_t* dst) {
  using C = Chunk<dtype>;
  C chunk;
  const uint8_t *plane[C::planes], *end = in + nbytes, *header = in;
  if (nbytes < C::header_nbytes) return false;
  in += C::header_nbytes;
  for (uint32_t p = 0; p < C::planes; p++) {
    auto h = load<PlaneHeader>(header + 2 * p);
    plane[p] = decode_plane(h, in, end, n, chunk.plane[p]);
    if (!plane[p]) return false;
  }
  if (in != end) return false;
  join<dtype>(plane, n, dst, std::make_index_sequence<C::planes>{});
  return true;
}

template <uint32_t dtype>
int64_t encode(Args* args, const uint8_t* src, uint8_t* dst) {
  using C = Chunk<dtype>;
  uint64_t nbytes = args->nbytes(), chunks = (nbytes + chunk_nbytes - 1) / chunk_nbytes;
  uint64_t fixed = (chunks + 1) / 2 * 8;
  if (fixed > args->capacity) return TOO_LARGE;
  if (chunks % 2) store<uint32_t>(dst + 4 * chunks, 0);
  uint8_t *out = dst + fixed, *end = dst + args->capacity;
  uint8_t spill[C::max_nbytes + encode_slack];
  for (uint64_t c = 0; c < chunks; c++) {
    uint64_t left = nbytes - c * chunk_nbytes;
    uint32_t n = (left < chunk_nbytes ? left : chunk_nbytes) / sizeof(typename C::Word);
    bool roomy = uint64_t(end - out) >= sizeof spill;
    uint8_t* to = roomy ? out : spill;
    uint64_t used = encode_chunk<dtype>(src + c * chunk_nbytes, n, to) - to;
    if (used > uint64_t(end - out)) return TOO_LARGE;
    if (!roomy) memcpy(out, spill, used);
    out += used;
    if (uint64_t(out - dst) / 8 >> 32) return TOO_LARGE;
    store<uint32_t>(dst + 4 * c, uint32_t((out - dst) / 8));
  }
  args->params[0] = version;
  args->bound = 0;
  return out - dst;
}

template <uint32_t dtype>
int64_t decode(const Args* args, const uint8_t* payload, uint64_t payload_nbytes, uint8_t* dst) {
  using C = Chunk<dtype>;
  uint64_t nbytes = args->nbytes(), chunks = (nbytes + chunk_nbytes - 1) / chunk_nbytes;
  uint64_t at = (chunks + 1) / 2 * 8;
  if (payload_nbytes < at) return BAD_STREAM;
  uint8_t tail[C::max_nbytes + decode_slack];
  for (uint64_t c = 0; c < chunks; c++) {
    uint64_t left = nbytes - c * chunk_nbytes, end = uint64_t(load<uint32_t>(payload + 4 * c)) * 8;
    uint32_t n = (left < chunk_nbytes ? left : chunk_nbytes) / sizeof(typename C::Word);
    if (end < at || end > payload_nbytes || end - at > C::max_nbytes) return BAD_STREAM;
    const uint8_t* in = payload + at;
    if (payload_nbytes - end < decode_slack) {
      memcpy(tail, in, end - at);
      memset(tail + (end - at), 0, decode_slack);
      in = tail;
    }
    if (!decode_chunk<dtype>(in, end - at, n, dst + c * chunk_nbytes)) return BAD_STREAM;
    at = end;
  }
  return at == payload_nbytes ? 0 : BAD_STREAM;
}

int64_t encode_any(Args* args, const void* source, void* target) {
  auto src = static_cast<const uint8_t*>(source);
  auto dst = static_cast<uint8_t*>(target);
  switch (args->dtype) {
    case FLOAT16: return encode<FLOAT16>(args, src, dst);
    case BFLOAT16: return encode<BFLOAT16>(args, src, dst);
    case FLOAT32: case COMPLEX64: return encode<FLOAT32>(args, src, dst);
    case FLOAT64: case COMPLEX128: return encode<FLOAT64>(args, src, dst);
    default: return UNSUPPORTED;
  }
}

int64_t decode_any(const Args* args, const void* source, uint64_t nbytes, void* target) {
  auto payload = static_cast<const uint8_t*>(source);
  auto dst = static_cast<uint8_t*>(target);
  if (args->params[0] != version || args->params[1]) return BAD_STREAM;
  switch (args->dtype) {
    case FLOAT16: return decode<FLOAT16>(args, payload, nbytes, dst);
    case BFLOAT16: return decode<BFLOAT16>(args, payload, nbytes, dst);
    case FLOAT32: case COMPLEX64: return decode<FLOAT32>(args, payload, nbytes, dst);
    case FLOAT64: case COMPLEX128: return decode<FLOAT64>(args, payload, nbytes, dst);
    default: return BAD_STREAM;
  }
}

}  // namespace
}  // namespace floats

extern const Codec float_codec = {"float", floats::encode_any, floats::decode_any, nullptr, nullptr};

}  // namespace CC_LEVEL
}  // namespace compcoll
