// Differences to a base, block by block: csrc/delta.h.
#include "../delta.h"

#include <cstring>
#include <type_traits>

#include "delta_planes.h"
#include "table.h"

namespace compcoll {
namespace CC_LEVEL {
namespace deltas {
namespace {

constexpr uint64_t block_nbytes = delta_block_nbytes;
constexpr uint32_t slack = 64;
// Pack and unpack at most `few` of 64 words one at a time. The loop always runs `few` times, so it has no
// branch.
constexpr int few = 4;

// Integers of the array, and the lanes in which nonzero ones are coded.
template <class W>
struct Block {
  using V = std::conditional_t<sizeof(W) == 8, uint64_t, uint32_t>;
  using Words = vec<W, vector_nbytes / sizeof(W)>;
  static constexpr uint32_t words = block_nbytes / sizeof(W), bits = 8 * sizeof(W), map_words = words / 64;
  // Runs of up to twice the words' bits, padded to bytes, and the positions.
  static constexpr uint32_t most = 4 * block_nbytes;
  uint64_t map[map_words];
  alignas(64) V u[words + 32];
  alignas(64) V other[words + 32];
  alignas(64) W word[words + 32];
};

template <class W, class Words>
CC_HD Words to_word(Words a, Words b, bool difference) {
  if (!difference) return a ^ b;
  using Signed = std::make_signed_t<W>;
  using SignedWords = vec<Signed, sizeof(Words) / sizeof(W)>;
  Words d = a - b;
  return d << 1 ^ Words(SignedWords(d) >> (8 * sizeof(W) - 1));
}

template <class Words>
CC_HD Words from_word(Words word, Words b, bool difference) {
  return difference ? b + (word >> 1 ^ -(word & 1)) : b ^ word;
}

template <class Words>
CC_HD bool is_any(Words v) {
#if defined(__AVX512BW__)
  return _mm512_test_epi64_mask(__m512i(v), __m512i(v));
#elif defined(__AVX2__)
  return !_mm256_testz_si256(__m256i(v), __m256i(v));
#else
  vec<uint64_t, sizeof(Words) / 8> parts = vec<uint64_t, sizeof(Words) / 8>(v);
  uint64_t any = 0;
  for (size_t i = 0; i < sizeof(Words) / 8; i++) any |= parts[i];
  return any;
#endif
}

// Differences of a whole block; true if there are any.
template <class W, bool difference>
bool subtract(const uint8_t* src, const uint8_t* base, W* word) {
  using Words = typename Block<W>::Words;
  Words any = {};
  for (uint64_t i = 0; i < block_nbytes; i += sizeof(Words)) {
    Words w = to_word<W>(load<Words>(src + i), load<Words>(base + i), difference);
    store(reinterpret_cast<uint8_t*>(word) + i, w);
    any |= w;
  }
  return is_any(any);
}

// 32 words, widened.
template <class W, class V>
CC_HD Lanes<V> widened(const W* word) {
  if constexpr (sizeof(W) == sizeof(V)) return load<Lanes<V>>(word);
  else return __builtin_convertvector(load<vec<W, lanes_of<V>>>(word), Lanes<V>);
}

// Mask of the nonzero words among 64; if computing it takes too long, all of them if any is not zero.
template <class W>
CC_HD uint64_t map_of(const W* word) {
  using Words = typename Block<W>::Words;
#if defined(__AVX512BW__)
  if constexpr (sizeof(W) == 2) {
    const __m512i low = load<__m512i>(word), high = load<__m512i>(word + 32);
    return _mm512_test_epi16_mask(low, low) | uint64_t(_mm512_test_epi16_mask(high, high)) << 32;
  }
#elif defined(__AVX2__)
  if constexpr (sizeof(W) == 2) {
    uint64_t map = 0;
    for (int i = 0; i < 64; i += 32) {
      const __m256i none = _mm256_setzero_si256(), low = _mm256_cmpeq_epi16(load<__m256i>(word + i), none),
                    high = _mm256_cmpeq_epi16(load<__m256i>(word + i + 16), none);
      const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0b11011000);
      map |= uint64_t(~uint32_t(_mm256_movemask_epi8(bytes))) << i;
    }
    return map;
  }
#endif
  Words any = {};
  for (uint32_t i = 0; i < 64; i += sizeof(Words) / sizeof(W)) any |= load<Words>(word + i);
  return is_any(any) ? ~uint64_t(0) : 0;
}

// Index of the lowest bit, or 64.
CC_HD uint32_t lowest_bit(uint64_t map) { return map ? uint32_t(__builtin_ctzll(map)) : 64; }

// Packs the nonzero words, less one, and records their positions; returns their number.
template <class W>
uint32_t gather(Block<W>& block) {
  using V = typename Block<W>::V;
  uint8_t* out = reinterpret_cast<uint8_t*>(block.u);
  for (uint32_t i = 0; i < block.words; i += 64) {
    uint64_t map = map_of(block.word + i);
    if (__builtin_popcountll(map) <= few) {
      block.map[i / 64] = map;
      const int n = __builtin_popcountll(map);
      for (int k = 0; k < few; k++, map &= map - 1)
        store(out + k * sizeof(V), V(block.word[i + lowest_bit(map) % 64]));
      out += n * sizeof(V);
      continue;
    }
    map = 0;
    for (uint32_t j = 0; j < 64; j += lanes_of<V>)
      map |= uint64_t(store_nonzero<V>(widened<W, V>(block.word + i + j), out)) << j;
    block.map[i / 64] = map;
  }
  uint32_t n = uint32_t((out - reinterpret_cast<uint8_t*>(block.u)) / sizeof(V));
  for (uint32_t i = 0; i < n; i += lanes_of<V>) store(block.u + i, load<Lanes<V>>(block.u + i) - 1);
  clear32(block.u + n);
  return n;
}

// The smallest number of low bits such that at most half of a sample of values need more.
template <class V>
uint32_t choose_r(const V* u, uint32_t n) {
  uint32_t longer[2][66] = {}, step = n / 64 + 1, taken = 0;  // two, since most values count in one entry
  for (uint32_t i = 0; i < n; i += step, taken++)
    longer[taken & 1][u[i] ? 64 - uint32_t(__builtin_clzll(u[i])) : 0]++;
  uint32_t r = 0;
  for (uint32_t left = taken - longer[0][0] - longer[1][0]; 2 * left > taken;) {
    r++;
    left -= longer[0][r] + longer[1][r];
  }
  return r;
}

// Encodes a block whose words are not all zero; returns the code's size, at most Block::most.
template <class W>
uint32_t encode_block(Block<W>& block, uint8_t* start) {
  using V = typename Block<W>::V;
  constexpr uint32_t words = Block<W>::words;
  uint8_t* out = start + 1;
  uint32_t n = gather(block), r;
  uint8_t positions = n > words - words / 8 ? DELTA_ALL : 4 * n > words ? DELTA_DENSE : DELTA_SPARSE;
  if (positions == DELTA_ALL) {
    n = words;
    for (uint32_t i = 0; i < n; i += lanes_of<V>) store(block.u + i, widened<W, V>(block.word + i));
  } else if (positions == DELTA_DENSE) {
    memcpy(out, block.map, words / 8);
    out += words / 8;
  } else {
    out = encode_sparse(block.map, Block<W>::map_words, out);
  }
  r = choose_r(block.u, n);
  if (r > block.bits - 1) r = block.bits - 1;
  if (positions == DELTA_ALL && !r) r = 1;  // a word of all ones plus one is zero
  *start = uint8_t(positions << 6 | r);
  return uint32_t(encode_values(block.u, n, r, out) - start);
}

// The last block, padded to a whole one.
const uint8_t* padded(const uint8_t* p, uint64_t nbytes, uint8_t* copy) {
  if (nbytes == block_nbytes) return p;
  memset(copy, 0, block_nbytes);
  memcpy(copy, p, nbytes);
  return copy;
}

uint64_t n_blocks(uint64_t nbytes) { return (nbytes + block_nbytes - 1) / block_nbytes; }

template <class W, bool difference>
int64_t encode_blocks(const uint8_t* src, const uint8_t* base, uint64_t nbytes, uint64_t capacity,
                      uint8_t* dst) {
  Block<W> block;
  alignas(64) uint8_t code[Block<W>::most + slack], copies[2][block_nbytes];
  const uint64_t blocks = n_blocks(nbytes);
  if (2 * blocks > capacity) return TOO_LARGE;
  uint64_t at = 2 * blocks;
  for (uint64_t k = 0; k < blocks; k++, src += block_nbytes, base += block_nbytes, nbytes -= block_nbytes) {
    const uint64_t raw = nbytes < block_nbytes ? nbytes : block_nbytes;
    uint16_t size = 0;
    if (subtract<W, difference>(padded(src, raw, copies[0]), padded(base, raw, copies[1]), block.word))
      size = uint16_t(encode_block(block, code));
    const bool is_raw = size >= raw;
    const uint64_t taken = is_raw ? raw : size;
    if (at + taken > capacity) return TOO_LARGE;
    memcpy(dst + at, is_raw ? src : code, taken);
    if (is_raw) size = delta_raw;
    memcpy(dst + 2 * k, &size, 2);
    at += taken;
    if (nbytes <= block_nbytes) break;
  }
  return int64_t(at);
}

int64_t encode_as(uint32_t dtype, bool difference, const void* src, const void* base, uint64_t nbytes,
                  uint64_t capacity, void* dst) {
  auto s = static_cast<const uint8_t*>(src), b = static_cast<const uint8_t*>(base);
  auto d = static_cast<uint8_t*>(dst);
  switch (delta_word_nbytes(dtype) | uint32_t(difference)) {
    case 2: return encode_blocks<uint16_t, false>(s, b, nbytes, capacity, d);
    case 3: return encode_blocks<uint16_t, true>(s, b, nbytes, capacity, d);
    case 4: return encode_blocks<uint32_t, false>(s, b, nbytes, capacity, d);
    case 5: return encode_blocks<uint32_t, true>(s, b, nbytes, capacity, d);
    case 8: return encode_blocks<uint64_t, false>(s, b, nbytes, capacity, d);
    default: return encode_blocks<uint64_t, true>(s, b, nbytes, capacity, d);
  }
}

// -- the choice, from at most 8 blocks spread over the array

struct Sample {
  static constexpr uint64_t blocks = 8, most = blocks * block_nbytes;
  uint8_t src[most], base[most], code[most + 1024];
  uint64_t nbytes = 0;

  Sample(const Args* args, const uint8_t* from, const uint8_t* base_from) {
    const uint64_t whole = args->nbytes() / block_nbytes, n = whole / 64 < blocks ? whole / 64 : blocks;
    if (!n) {  // the first blocks
      nbytes = whole < blocks ? args->nbytes() : most;
      if (nbytes > most) nbytes = most;
      memcpy(src, from, nbytes);
      memcpy(base, base_from, nbytes);
      return;
    }
    for (uint64_t k = 0; k < n; k++, nbytes += block_nbytes) {
      memcpy(src + nbytes, from + k * (whole / n) * block_nbytes, block_nbytes);
      memcpy(base + nbytes, base_from + k * (whole / n) * block_nbytes, block_nbytes);
    }
  }

  uint64_t size(uint32_t dtype, bool difference) {
    int64_t n = encode_as(dtype, difference, src, base, nbytes, sizeof code, code);
    return n < 0 ? nbytes : uint64_t(n);
  }

  // Size of the sample when coded by `lossless`.
  uint64_t plain_size(uint32_t dtype) {
    Args args = {dtype, 1, {nbytes / itemsize(dtype), 1, 1}, {1, 0}, sizeof code, 0, 0, nullptr};
    lossless_codec.encode(&args, src, code);
    const Codec* const codecs[] = {&raw_codec, &mpc_codec, &float_codec};
    const Codec* codec = codecs[args.params[0]];
    args.params[0] = codec == &float_codec ? 1 : args.params[1];
    args.params[1] = 0;
    int64_t n = codec->encode(&args, src, code);
    return n < 0 || uint64_t(n) > nbytes ? nbytes : uint64_t(n);
  }
};

int64_t encode(Args* args, const void* src, void* dst) {
  if (!args->base || !itemsize(args->dtype)) return UNSUPPORTED;
  args->bound = 0;
  bool difference = false;
  if (args->nbytes()) {
    Sample sample(args, static_cast<const uint8_t*>(src), static_cast<const uint8_t*>(args->base));
    const uint64_t with_xor = sample.size(args->dtype, false),
                   with_difference = sample.size(args->dtype, true);
    difference = with_difference < with_xor;
    const uint64_t best = difference ? with_difference : with_xor;
    // Codecs without a base seldom need less than a third of the raw size.
    if (3 * best > sample.nbytes && sample.plain_size(args->dtype) < best) return TOO_LARGE;
  }
  args->params[0] = delta_version | (difference ? delta_is_difference : 0);
  return encode_as(args->dtype, difference, src, args->base, args->nbytes(), args->capacity, dst);
}

template <class W>
bool decode_positions(uint8_t positions, const uint8_t*& in, const uint8_t* end, Block<W>& block,
                      uint32_t* n) {
  constexpr uint32_t words = Block<W>::words;
  *n = words;
  if (positions == DELTA_ALL) return true;
  if (positions == DELTA_DENSE) {
    if (end - in < int64_t(words / 8)) return false;
    memcpy(block.map, in, words / 8);
    in += words / 8;
  } else {
    in = decode_sparse(in, end, block.map, Block<W>::map_words);
    if (!in) return false;
  }
  *n = 0;
  for (uint64_t map : block.map) *n += uint32_t(__builtin_popcountll(map));
  return true;
}

template <class W, class L>
CC_HD void store_narrowed(W* word, L v) {
  if constexpr (sizeof(W) == sizeof(typename lanes<L>::word)) store(word, v);
  else store(word, __builtin_convertvector(v, vec<W, lanes<L>::n>));
}

// Puts values back to their words' positions.
template <class W>
void spread(Block<W>& block) {
  using V = typename Block<W>::V;
  using Words = typename Block<W>::Words;
  const uint8_t* packed = reinterpret_cast<const uint8_t*>(block.u);
  for (uint32_t i = 0; i < block.words; i += 64) {
    uint64_t map = block.map[i / 64];
    if (__builtin_popcountll(map) <= few) {
      for (uint32_t j = 0; j < 64; j += sizeof(Words) / sizeof(W)) store(block.word + i + j, Words{});
      const int n = __builtin_popcountll(map);
      // Excess words are written after these, where the next words are still to be written.
      for (int k = 0; k < few; k++, map &= map - 1)
        block.word[i + lowest_bit(map)] = W(load<V>(packed + k * sizeof(V)));
      packed += n * sizeof(V);
      continue;
    }
    for (uint32_t j = 0; j < 64; j += lanes_of<V>)
      store_narrowed(block.word + i + j,
                     load_nonzero<V, Lanes<V>>(uint32_t(map >> j) & all_lanes<V>, packed));
  }
}

// Decodes a block's words; up to `slack` bytes after the code may be read.
template <class W>
bool decode_block(const uint8_t* code, uint32_t nbytes, Block<W>& block) {
  using V = typename Block<W>::V;
  const uint8_t *in = code + 1, *end = code + nbytes;
  const uint32_t r = *code & 63;
  const uint8_t positions = *code >> 6;
  uint32_t n;
  if (positions > DELTA_ALL || r >= block.bits || !decode_positions(positions, in, end, block, &n))
    return false;
  if (decode_values(in, end, n, r, block.u, block.other) != end) return false;
  if (positions != DELTA_ALL) {
    for (uint32_t i = 0; i < n; i += lanes_of<V>) store(block.u + i, load<Lanes<V>>(block.u + i) + 1);
    spread(block);
    return true;
  }
  for (uint32_t i = 0; i < block.words; i += lanes_of<V>)
    store_narrowed(block.word + i, load<Lanes<V>>(block.u + i));
  return true;
}

template <class W>
void add_words(const W* word, const uint8_t* base, bool difference, uint8_t* dst) {
  using Words = typename Block<W>::Words;
  for (uint64_t i = 0; i < block_nbytes; i += sizeof(Words))
    store(dst + i, from_word(load<Words>(reinterpret_cast<const uint8_t*>(word) + i), load<Words>(base + i),
                             difference));
}

template <class W>
int64_t decode_blocks(const uint8_t* in, uint64_t in_nbytes, const uint8_t* base, bool difference,
                      uint8_t* dst, uint64_t nbytes) {
  Block<W> block;
  alignas(64) uint8_t code[block_nbytes + slack], copies[2][block_nbytes];
  const uint64_t blocks = n_blocks(nbytes);
  if (in_nbytes < 2 * blocks) return BAD_STREAM;
  const uint8_t *end = in + in_nbytes, *sizes = in;
  in += 2 * blocks;
  for (uint64_t k = 0; k < blocks; k++) {
    const uint64_t at = k * block_nbytes, raw = nbytes - at < block_nbytes ? nbytes - at : block_nbytes;
    uint16_t size;
    memcpy(&size, sizes + 2 * k, 2);
    const uint64_t taken = size == delta_raw ? raw : size;
    if (uint64_t(end - in) < taken || (size != delta_raw && size >= raw)) return BAD_STREAM;
    if (size == delta_raw || !size) {
      memmove(dst + at, size ? in : base + at, raw);
    } else {
      memcpy(code, in, size);
      if (!decode_block(code, size, block)) return BAD_STREAM;
      if (raw == block_nbytes) {
        add_words(block.word, base + at, difference, dst + at);
      } else {
        add_words(block.word, padded(base + at, raw, copies[0]), difference, copies[1]);
        memcpy(dst + at, copies[1], raw);
      }
    }
    in += taken;
  }
  return in == end ? 0 : BAD_STREAM;
}

// dst may be the base.
int64_t decode(const Args* args, const void* payload, uint64_t nbytes, void* dst) {
  if (!args->base || (args->params[0] & ~delta_is_difference) != delta_version || !itemsize(args->dtype))
    return UNSUPPORTED;
  const bool difference = args->params[0] & delta_is_difference;
  auto in = static_cast<const uint8_t*>(payload), base = static_cast<const uint8_t*>(args->base);
  auto out = static_cast<uint8_t*>(dst);
  switch (delta_word_nbytes(args->dtype)) {
    case 2: return decode_blocks<uint16_t>(in, nbytes, base, difference, out, args->nbytes());
    case 4: return decode_blocks<uint32_t>(in, nbytes, base, difference, out, args->nbytes());
    default: return decode_blocks<uint64_t>(in, nbytes, base, difference, out, args->nbytes());
  }
}

}  // namespace
}  // namespace deltas

extern const Codec delta_codec = {"delta", deltas::encode, deltas::decode, nullptr, nullptr};

}  // namespace CC_LEVEL
}  // namespace compcoll
