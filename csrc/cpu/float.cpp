// Chunk by chunk: values to byte planes and back. float_plane.h codes each plane.
#include "../float.h"

#include <cstring>

#include "float_plane.h"
#include "sink.h"
#include "table.h"

namespace compcoll {
namespace CC_LEVEL {
namespace floats {
namespace {

template <uint32_t dtype>
struct Chunk {
  using F = Format<dtype>;
  using Word = typename F::Word;
  using Words = vec<Word, vector_nbytes / sizeof(Word)>;
  static constexpr uint32_t planes = F::planes, values = chunk_values<dtype>, width = sizeof(Word);
  static constexpr uint32_t header_nbytes = (2 * planes + 7) / 8 * 8;
  // No plane takes more than its raw size.
  static constexpr uint32_t max_nbytes = header_nbytes + planes * values;
  uint8_t plane[planes][values + 64];
};

// 64 values to one vector per plane.
template <uint32_t dtype>
CC_HD void split64(const uint8_t* src, Bytes64* plane) {
  using C = Chunk<dtype>;
  Bytes64 v[C::width], bytes[C::width];
  for (uint32_t i = 0; i < C::width; i++)
    v[i] = map(Bytes64::load(src + 64 * i),
               [](auto p) { return Bytes64::SubVector(C::F::turn(typename C::Words(p))); });
  to_planes<C::width>(v, bytes);
  for (uint32_t i = 0; i < C::width; i++) plane[C::planes - 1 - i] = bytes[i];
  if constexpr (dtype == FLOAT16) {
    plane[0] = map(bytes[1], [](auto p) { return C::F::exponent(p); });
    plane[1] = map(bytes[1], [](auto p) { return C::F::others(p); });
  }
}

template <uint32_t dtype>
CC_HD void join64(const uint8_t* const* plane, uint32_t at, uint8_t* dst) {
  using C = Chunk<dtype>;
  Bytes64 v[C::width], bytes[C::width];
  for (uint32_t i = 0; i < C::width; i++) bytes[i] = Bytes64::load(plane[C::planes - 1 - i] + at);
  if constexpr (dtype == FLOAT16) {
    Bytes64 exponent = Bytes64::load(plane[0] + at);
    for (int i = 0; i < Bytes64::parts; i++)
      bytes[1].part[i] = C::F::upper(exponent.part[i], bytes[1].part[i]);
  }
  from_planes<C::width>(bytes, v);
  for (uint32_t i = 0; i < C::width; i++)
    map(v[i], [](auto p) {
      return Bytes64::SubVector(C::F::turn_back(typename C::Words(p)));
    }).store(dst + 64 * i);
}

// Values to planes, and the bits that vary in each plane.
template <uint32_t dtype>
void split(const uint8_t* src, uint32_t n, Chunk<dtype>& chunk, PlaneHeader* headers) {
  using C = Chunk<dtype>;
  Bytes64 v[C::planes], any[C::planes], all[C::planes];
  for (uint32_t p = 0; p < C::planes; p++) any[p] = splat(0), all[p] = splat(255);
  for (uint32_t i = 0; i < n; i += 64) {
    uint8_t tail[64 * C::width];
    const uint8_t* in = src + i * C::width;
    if (n - i < 64) {  // repeat the last value, so that the varying bits do not change
      for (uint32_t k = 0; k < 64; k++)
        memcpy(tail + k * C::width, in + (k < n - i ? k : n - i - 1) * C::width, C::width);
      in = tail;
    }
    split64<dtype>(in, v);
    for (uint32_t p = 0; p < C::planes; p++) {
      v[p].store(chunk.plane[p] + i);
      any[p] = any[p] | v[p];
      all[p] = all[p] & v[p];
    }
  }
  for (uint32_t p = 0; p < C::planes; p++) {
    uint8_t set = reduce(any[p], [](uint8_t a, uint8_t b) { return a | b; });
    uint8_t base = reduce(all[p], [](uint8_t a, uint8_t b) { return a & b; });
    headers[p] = {uint8_t(set ^ base), base};
  }
}

template <uint32_t dtype>
uint8_t* encode_chunk(const uint8_t* src, uint32_t n, uint8_t* out) {
  using C = Chunk<dtype>;
  C chunk;
  PlaneHeader headers[C::planes];
  split<dtype>(src, n, chunk, headers);
  uint8_t* start = out;
  out += C::header_nbytes;
  const Ahead ahead = {uintptr_t(src) + chunk_nbytes, uintptr_t(out), 64 * C::width};
  for (uint32_t p = 0; p < C::planes; p++)
    out = encode_plane(chunk.plane[p], n, headers[p], out, p ? Ahead{} : ahead);
  memset(start, 0, C::header_nbytes);
  memcpy(start, headers, sizeof headers);
  return out;
}

template <uint32_t dtype>
void join(const uint8_t** plane, uint32_t n, uint8_t* dst) {
  using C = Chunk<dtype>;
  uint32_t i = 0;
  for (; i + 64 <= n; i += 64) join64<dtype>(plane, i, dst + i * C::width);
  if (i == n) return;
  uint8_t in[C::planes][64] = {}, out[64 * C::width];
  for (uint32_t p = 0; p < C::planes; p++) {
    memcpy(in[p], plane[p] + i, n - i);
    plane[p] = in[p];
  }
  join64<dtype>(plane, 0, out);
  memcpy(dst + i * C::width, out, (n - i) * C::width);
}

// Reads `in` up to decode_slack bytes past its end.
template <uint32_t dtype>
bool decode_chunk(const uint8_t* in, uint32_t nbytes, uint32_t n, uint8_t* dst) {
  using C = Chunk<dtype>;
  C chunk;
  const uint8_t *plane[C::planes], *end = in + nbytes, *header = in;
  if (nbytes < C::header_nbytes) return false;
  const Ahead ahead = {uintptr_t(end), uintptr_t(dst), 64 * C::width};
  in += C::header_nbytes;
  for (uint32_t p = 0; p < C::planes; p++) {
    auto h = load<PlaneHeader>(header + 2 * p);
    plane[p] = decode_plane(h, in, end, n, chunk.plane[p], p ? Ahead{} : ahead);
    if (!plane[p]) return false;
  }
  if (in != end) return false;
  join<dtype>(plane, n, dst);
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
    uint32_t n = (left < chunk_nbytes ? left : chunk_nbytes) / C::width;
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

template <uint32_t dtype, class Sink>
int64_t decode(const Args* args, const uint8_t* payload, uint64_t payload_nbytes, Sink& sink) {
  using C = Chunk<dtype>;
  uint64_t nbytes = args->nbytes(), chunks = (nbytes + chunk_nbytes - 1) / chunk_nbytes;
  uint64_t at = (chunks + 1) / 2 * 8;
  if (payload_nbytes < at) return BAD_STREAM;
  uint8_t tail[C::max_nbytes + decode_slack];
  for (uint64_t c = 0; c < chunks; c++) {
    uint64_t left = nbytes - c * chunk_nbytes, end = uint64_t(load<uint32_t>(payload + 4 * c)) * 8;
    uint32_t n = (left < chunk_nbytes ? left : chunk_nbytes) / C::width;
    if (end < at || end > payload_nbytes || end - at > C::max_nbytes) return BAD_STREAM;
    const uint8_t* in = payload + at;
    if (payload_nbytes - end < decode_slack) {
      memcpy(tail, in, end - at);
      memset(tail + (end - at), 0, decode_slack);
      in = tail;
    }
    if (!decode_chunk<dtype>(in, end - at, n, sink.room(c * chunk_nbytes))) return BAD_STREAM;
    sink.done(c * chunk_nbytes, n * C::width);
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
    case FLOAT32:
    case COMPLEX64: return encode<FLOAT32>(args, src, dst);
    case FLOAT64:
    case COMPLEX128: return encode<FLOAT64>(args, src, dst);
    default: return UNSUPPORTED;
  }
}

template <class Sink>
int64_t decode_to(const Args* args, const void* source, uint64_t nbytes, Sink sink) {
  auto payload = static_cast<const uint8_t*>(source);
  if (args->params[0] != version || args->params[1]) return BAD_STREAM;
  switch (args->dtype) {
    case FLOAT16: return decode<FLOAT16>(args, payload, nbytes, sink);
    case BFLOAT16: return decode<BFLOAT16>(args, payload, nbytes, sink);
    case FLOAT32:
    case COMPLEX64: return decode<FLOAT32>(args, payload, nbytes, sink);
    case FLOAT64:
    case COMPLEX128: return decode<FLOAT64>(args, payload, nbytes, sink);
    default: return BAD_STREAM;
  }
}

int64_t decode_any(const Args* args, const void* payload, uint64_t nbytes, void* dst) {
  return decode_to(args, payload, nbytes, StoreSink{static_cast<uint8_t*>(dst)});
}

int64_t decode_add(const Args* args, const void* payload, uint64_t nbytes, void* dst) {
  if (!can_accumulate(args)) return UNSUPPORTED;
  return decode_to(args, payload, nbytes, AddSink<chunk_nbytes>(args, dst));
}

}  // namespace
}  // namespace floats

extern const Codec float_codec = {"float", floats::encode_any, floats::decode_any, floats::decode_add,
                                  nullptr};

}  // namespace CC_LEVEL
}  // namespace compcoll
