// MPC block by block: each stage covers the whole block before the next one starts, so that the block (4 or 8
// KiB) stays in the first-level cache and no stage waits for another's stores.
#include "../mpc.h"

#include <cstring>

#include "compact.h"
#include "prefetch.h"
#include "shuffle.h"
#include "sink.h"
#include "table.h"

namespace compcoll {
namespace CC_LEVEL {
namespace mpc {
namespace {

template <class W>
struct Shape {
  static constexpr int lanes = vector_nbytes / sizeof(W);
  static constexpr int registers = bits<W> / lanes;  // vectors in a group of W words
  static constexpr uint32_t group_nbytes = bits<W> * sizeof(W);
  static constexpr uint32_t groups = block_words / bits<W>;
  using V = vec<W, lanes>;
};

// Swaps bit j of the lane index with the choice between the two vectors.
template <int n, int j, bool second>
struct Pair {
  static constexpr int at(int i) { return second ? (i & j ? n + i : i ^ j) : (i & j ? n + (i ^ j) : i); }
};
template <int n, bool second>
struct Interleave {
  static constexpr int at(int i) { return (second ? n / 2 : 0) + i / 2 + (i & 1) * n; }
};

// Exchanges at distances j < lanes, on two adjacent vectors. Each step first brings together the words whose
// indices differ in bit j; at the end the two vectors hold the even and the odd words.
template <class W, int j, class V>
CC_HD void exchange_lanes(V& a, V& b) {
  constexpr int n = Shape<W>::lanes;
  V low = permute<Pair<n, j, false>>(a, b), high = permute<Pair<n, j, true>>(a, b);
  exchange<W>(low, high, j);
  if constexpr (j > 1) {
    a = low, b = high;
    exchange_lanes<W, j / 2>(a, b);
  } else {
    a = permute<Interleave<n, false>>(low, high);
    b = permute<Interleave<n, true>>(low, high);
  }
}

template <class W, class V>
CC_HD void transpose_group(V* v) {
  constexpr int n = Shape<W>::lanes, r = Shape<W>::registers;
  for (int d = r / 2; d; d /= 2)
    for (int i = 0; i < r; i++)
      if (!(i & d)) exchange<W>(v[i], v[i + d], d * n);
  for (int i = 0; i < r; i += 2) exchange_lanes<W, n / 2>(v[i], v[i + 1]);
}

// Stage 1: out[i] = in[i] - in[i - dim].
template <class W>
void difference(const uint8_t* in, size_t n, size_t dim, W* out) {
  size_t first = n < dim ? n : dim;
  memcpy(out, in, first * sizeof(W));
  const uint8_t* current = in + first * sizeof(W);
  for (size_t i = 0; i < n - first; i++)
    out[first + i] = load<W>(current + i * sizeof(W)) - load<W>(in + i * sizeof(W));
}

// Inverse of stage 1, in place, if dim is less than a vector's lanes: adds lanes at distances dim, 2 dim, 4
// dim, ..., then the last dim sums of the previous vector.
template <class W>
void integrate_lanes(W* w, uint32_t n, uint32_t dim) {
  using V = typename Shape<W>::V;
  constexpr uint32_t lanes = Shape<W>::lanes;
  V from[5], keep[5], carry, sum = {};
  uint32_t steps = 0;
  for (uint32_t s = dim; s < lanes; s *= 2, steps++)
    for (uint32_t i = 0; i < lanes; i++) from[steps][i] = i - s, keep[steps][i] = i < s ? 0 : ~W(0);
  for (uint32_t i = 0; i < lanes; i++) carry[i] = lanes - dim + i % dim;
  for (uint32_t i = 0; i < n; i += lanes) {
    V v = load<V>(w + i);
    for (uint32_t s = 0; s < steps; s++) v += permute_by(v, from[s]) & keep[s];
    sum = v + permute_by(sum, carry);
    store<V>(w + i, sum);
  }
}

template <class W>
void integrate_neighbours(W* w, uint32_t n) {
  using V = typename Shape<W>::V;
  V sum = {};
  for (uint32_t i = 0; i < n; i += Shape<W>::lanes) {
    V v = prefix_sum(load<V>(w + i));
    store<V>(w + i, v + sum);
    sum += broadcast_last(v);
  }
}

// The inverse of stage 1, in place; w has room for a whole block.
template <class W>
void integrate(W* w, uint32_t n, uint32_t dim) {
  using V = typename Shape<W>::V;
  constexpr uint32_t lanes = Shape<W>::lanes;
  constexpr bool shuffles = vector_nbytes > 16;  // by a variable index
  if (dim == 1) return integrate_neighbours(w, n);
  if (shuffles && dim < lanes) return integrate_lanes(w, n, dim);
  uint32_t i = dim;
  if (dim >= lanes)
    for (; i + lanes <= n; i += lanes) store<V>(w + i, load<V>(w + i) + load<V>(w + i - dim));
  for (; i < n; i++) w[i] += w[i - dim];
}

// Stages 2 to 4. Writes up to one vector past the end that it returns.
template <class W>
uint8_t* encode_groups(const W* block, uint32_t groups, W* bitmap, uint8_t* out, Ahead ahead) {
  using S = Shape<W>;
  using V = typename S::V;
  V last = {};
  for (uint32_t g = 0; g < groups; g++) {
    ahead.fetch(g);
    V v[S::registers];
    for (int r = 0; r < S::registers; r++) v[r] = load<V>(block + g * bits<W> + r * S::lanes);
    transpose_group<W>(v);
    W map = 0;
    for (int r = 0; r < S::registers; r++) {
      map |= W(store_nonzero<W>(v[r] - shift_up<1>(last, v[r]), out)) << (r * S::lanes);
      last = v[r];
    }
    bitmap[g] = map;
  }
  if (W unmapped = 0 - last[S::lanes - 1]; unmapped && groups < S::groups) {
    store<W>(out, unmapped);
    out += sizeof(W);
  }
  return out;
}

// The inverse of stages 2 to 4. `last` is the word before the group in every lane, and becomes the group's
// last word.
template <class W>
void decode_group(W map, const uint8_t* in, typename Shape<W>::V& last, W* words) {
  using S = Shape<W>;
  using V = typename S::V;
  constexpr W lanes_mask = W(~W(0)) >> (bits<W> - S::lanes);
  V v[S::registers];
  for (int r = 0; r < S::registers; r++) {
    v[r] = prefix_sum(load_nonzero<W, V>(map >> (r * S::lanes) & lanes_mask, in));
    V total = broadcast_last(v[r]);
    v[r] += last;
    last += total;
  }
  transpose_group<W>(v);
  for (int r = 0; r < S::registers; r++) store<V>(words + r * S::lanes, v[r]);
}

template <class W>
int64_t encode(Args* args, const uint8_t* src, uint8_t* dst) {
  constexpr uint32_t w = bits<W>, block_nbytes = block_words * sizeof(W);
  uint64_t nbytes = args->nbytes(), n = (nbytes + sizeof(W) - 1) / sizeof(W), dim = args->params[0];
  uint64_t fixed = header_nbytes + (n + w - 1) / w * sizeof(W);
  if (fixed > args->capacity || n >> 32) return TOO_LARGE;
  store<uint64_t>(dst, header(W(), n, dim));
  uint8_t *bitmap = dst + header_nbytes, *out = dst + fixed, *end = dst + args->capacity;
  W block[block_words], map[Shape<W>::groups], spill[block_words + 1 + Shape<W>::lanes];
  for (uint64_t at = 0; at < nbytes; at += block_nbytes) {
    uint64_t left = nbytes - at < block_nbytes ? nbytes - at : block_nbytes;
    uint32_t count = (left + sizeof(W) - 1) / sizeof(W), groups = (count + w - 1) / w;
    if (count < block_words || left % sizeof(W)) {
      memset(spill, 0, sizeof spill);
      memcpy(spill, src + at, left);
      difference(reinterpret_cast<uint8_t*>(spill), count, dim, block);
      memset(block + count, 0, (block_words - count) * sizeof(W));
    } else {
      difference(src + at, count, dim, block);
    }
    bool roomy = uint64_t(end - out) >= sizeof spill;
    uint8_t* to = roomy ? out : reinterpret_cast<uint8_t*>(spill);
    uintptr_t soon = uintptr_t(src) + at + 2 * block_nbytes;
    Ahead ahead = {soon, uintptr_t(out) + block_nbytes, Shape<W>::group_nbytes};
    uint64_t used = encode_groups<W>(block, groups, map, to, ahead) - to;
    if (used > uint64_t(end - out)) return TOO_LARGE;
    if (!roomy) memcpy(out, spill, used);
    memcpy(bitmap + at / w, map, groups * sizeof(W));
    out += used;
  }
  args->bound = 0;
  return out - dst;
}

template <class W, class Sink>
int64_t decode(const Args* args, const uint8_t* payload, uint64_t payload_nbytes, Sink& sink) {
  using S = Shape<W>;
  constexpr uint32_t w = bits<W>, block_nbytes = block_words * sizeof(W);
  uint64_t nbytes = args->nbytes(), n = (nbytes + sizeof(W) - 1) / sizeof(W), dim = args->params[0];
  uint64_t fixed = header_nbytes + (n + w - 1) / w * sizeof(W);
  if (n >> 32 || payload_nbytes < fixed || load<uint64_t>(payload) != header(W(), n, dim)) return BAD_STREAM;
  const uint8_t *bitmap = payload + header_nbytes, *in = payload + fixed, *end = payload + payload_nbytes;
  W block[block_words], tail[w + S::lanes] = {};
  for (uint64_t at = 0; at < nbytes; at += block_nbytes) {
    uint64_t left = nbytes - at < block_nbytes ? nbytes - at : block_nbytes;
    uint32_t count = (left + sizeof(W) - 1) / sizeof(W);
    typename S::V last = {};
    uint8_t* to = sink.room(at);
    Ahead ahead = {uintptr_t(in) + block_nbytes, uintptr_t(to) + block_nbytes, S::group_nbytes};
    for (uint32_t i = 0; i < count; i += w) {
      ahead.fetch(i / w);
      W map = load<W>(bitmap + at / w + i / 8);
      uint64_t need = __builtin_popcountll(map) * sizeof(W), have = end - in;
      if (need > have) return BAD_STREAM;
      bool roomy = have >= sizeof tail;
      if (!roomy) memcpy(tail, in, have);
      decode_group<W>(map, roomy ? in : reinterpret_cast<uint8_t*>(tail), last, block + i);
      in += need;
    }
    integrate(block, count, dim);
    memcpy(to, block, left);
    sink.done(at, left);
  }
  bool unmapped = n % block_words && n % block_words <= block_words - w;
  return in == end || (unmapped && uint64_t(end - in) == sizeof(W)) ? 0 : BAD_STREAM;
}

bool wide(const Args* args) {
  switch (args->dtype) {
    case INT64:
    case UINT64:
    case FLOAT64:
    case COMPLEX128: return true;
    default: return false;
  }
}

bool sound(const Args* args) { return args->params[0] - 1 < max_dim && !args->params[1]; }

int64_t encode_any(Args* args, const void* src, void* dst) {
  if (!sound(args)) return UNSUPPORTED;
  auto encoder = wide(args) ? encode<uint64_t> : encode<uint32_t>;
  return encoder(args, static_cast<const uint8_t*>(src), static_cast<uint8_t*>(dst));
}

template <class Sink>
int64_t decode_to(const Args* args, const void* payload, uint64_t nbytes, Sink sink) {
  if (!sound(args)) return BAD_STREAM;
  auto decoder = wide(args) ? decode<uint64_t, Sink> : decode<uint32_t, Sink>;
  return decoder(args, static_cast<const uint8_t*>(payload), nbytes, sink);
}

int64_t decode_any(const Args* args, const void* payload, uint64_t nbytes, void* dst) {
  return decode_to(args, payload, nbytes, StoreSink{static_cast<uint8_t*>(dst)});
}

int64_t decode_add(const Args* args, const void* payload, uint64_t nbytes, void* dst) {
  if (!can_accumulate(args)) return UNSUPPORTED;
  return decode_to(args, payload, nbytes, AddSink<8 * block_words>(args, dst));
}

}  // namespace
}  // namespace mpc

extern const Codec mpc_codec = {"mpc", mpc::encode_any, mpc::decode_any, mpc::decode_add, nullptr};

}  // namespace CC_LEVEL
}  // namespace compcoll
