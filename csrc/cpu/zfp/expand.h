// Parts of ZFP's plane encoder with AVX-512: bits in which each 1 is doubled, and bit strings that grow in
// the lanes of a vector.
//
// A plane is coded as its first n bits, a test, and then each further bit up to the highest 1, where a 1 is
// followed by the next test. All tests but the last are 1, so each 1 is doubled and the last test is cleared.
// If the last coefficient has a 1, all bits before it are coded, and that 1 is not stored.
#pragma once
#include "../../zfp_squares.h"
#include "stream.h"
#include "tiles.h"

#if defined(__AVX512BW__)
namespace compcoll {
namespace CC_LEVEL {
namespace zfp {

struct ExpandTables {
  uint8_t code[16], length[16];  // code of a nibble with each 1 doubled
};

constexpr ExpandTables make_expand_tables() {
  ExpandTables t = {};
  SquareTables squares = make_square_tables();
  for (int i = 0; i < 16; i++) t.code[i] = squares.code[i], t.length[i] = 4 + squares.ones[i];
  return t;
}

alignas(64) inline constexpr ExpandTables expand_tables = make_expand_tables();

// For ternary logic.
constexpr int join = 0xf8, either_but = 0x56;  // a | (b & c), (a | b) ^ c

// Up to 128 bits for each of 8 lanes.
struct LaneBits128 { __m512i low, high, length; };

// Codes of up to 32 bits for the 16-bit elements of a vector, separately for even and odd elements, and the
// lengths of all.
struct Expanded16 { __m512i even, odd, length; };

// Joins adjacent codes: nibbles to bytes, bytes to elements.
inline Expanded16 expand16(__m512i v) {
  const __m512i nibble = _mm512_set1_epi8(15), byte = _mm512_set1_epi16(255);
  const __m512i pair = _mm512_set1_epi32(0xffff);
  auto table = [](const uint8_t* t) {
    return _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(t)));
  };
  const __m512i codes = table(expand_tables.code), lengths = table(expand_tables.length);
  __m512i a = _mm512_and_si512(v, nibble), b = _mm512_and_si512(_mm512_srli_epi64(v, 4), nibble);
  __m512i code_a = _mm512_shuffle_epi8(codes, a), code_b = _mm512_shuffle_epi8(codes, b);
  __m512i length_a = _mm512_shuffle_epi8(lengths, a);
  __m512i length = _mm512_add_epi8(length_a, _mm512_shuffle_epi8(lengths, b));

  __m512i even = _mm512_sllv_epi16(_mm512_and_si512(code_b, byte), _mm512_and_si512(length_a, byte));
  even = _mm512_ternarylogic_epi64(even, code_a, byte, join);
  __m512i odd = _mm512_sllv_epi16(_mm512_srli_epi16(code_b, 8), _mm512_srli_epi16(length_a, 8));
  odd = _mm512_or_si512(odd, _mm512_srli_epi16(code_a, 8));
  __m512i shift = _mm512_and_si512(length, byte);

  a = _mm512_sllv_epi32(_mm512_and_si512(odd, pair), _mm512_and_si512(shift, pair));
  a = _mm512_ternarylogic_epi64(a, even, pair, join);
  b = _mm512_sllv_epi32(_mm512_srli_epi32(odd, 16), _mm512_srli_epi32(shift, 16));
  b = _mm512_or_si512(b, _mm512_srli_epi32(even, 16));
  return {a, b, _mm512_add_epi16(shift, _mm512_srli_epi16(length, 8))};
}

// Joins the four strings of each lane, from even and odd 32-bit elements in turn.
inline LaneBits128 join4(__m512i even, __m512i odd, __m512i even_length, __m512i odd_length) {
  const __m512i half = _mm512_set1_epi64(0xffffffff);
  __m512i low = _mm512_sllv_epi64(_mm512_and_si512(odd, half), _mm512_and_si512(even_length, half));
  low = _mm512_ternarylogic_epi64(low, even, half, join);
  __m512i high = _mm512_sllv_epi64(_mm512_srli_epi64(odd, 32), _mm512_srli_epi64(even_length, 32));
  high = _mm512_or_si512(high, _mm512_srli_epi64(even, 32));
  __m512i lengths = _mm512_add_epi32(even_length, odd_length), shift = _mm512_and_si512(lengths, half);
  low = _mm512_or_si512(low, _mm512_sllv_epi64(high, shift));
  high = _mm512_srlv_epi64(high, _mm512_sub_epi64(_mm512_set1_epi64(64), shift));
  return {low, high, _mm512_add_epi64(shift, _mm512_srli_epi64(lengths, 32))};
}

inline LaneBits128 expand64(__m512i v) {
  Expanded16 e = expand16(v);
  return join4(e.even, e.odd, _mm512_and_si512(e.length, _mm512_set1_epi32(0xffff)),
               _mm512_srli_epi32(e.length, 16));
}

// Bit strings of 8 lanes, each growing from its lane's first word.
class LaneWriter {
 public:
  __m512i pos, end;

  LaneWriter(uint64_t* words, int stride, __m512i begin, __m512i stop, __m512i head)
      : pos(begin), end(stop), pending_(head), words_(words), stride_(stride) {
    first_ = _mm512_mullo_epi64(_mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7), _mm512_set1_epi64(stride));
  }

  bool more() const { return _mm512_cmplt_epi64_mask(pos, end); }

  // Appends bits; a lane stops at its end. high: true if a length may exceed 64.
  void put(const LaneBits128& bits, bool high) {
    __m512i fill = _mm512_and_si512(pos, _mm512_set1_epi64(63));
    __m512i rest = _mm512_sub_epi64(_mm512_set1_epi64(64), fill);
    __m512i next = _mm512_min_epi64(_mm512_add_epi64(pos, bits.length), end);
    __m512i from = _mm512_add_epi64(first_, _mm512_srli_epi64(pos, 6));
    __m512i to = _mm512_add_epi64(first_, _mm512_srli_epi64(next, 6));
    __mmask8 full = _mm512_cmpneq_epi64_mask(from, to);
    __m512i word = _mm512_or_si512(pending_, _mm512_sllv_epi64(bits.low, fill));
    __m512i carry = _mm512_srlv_epi64(bits.low, rest);
    if (high) {
      __m512i second = _mm512_or_si512(carry, _mm512_sllv_epi64(bits.high, fill));
      __m512i after = _mm512_add_epi64(from, _mm512_set1_epi64(1));
      __mmask8 both = _mm512_mask_cmpneq_epi64_mask(full, after, to);
      if (both) _mm512_mask_i64scatter_epi64(words_, both, after, second, 8);
      carry = _mm512_mask_srlv_epi64(second, both, bits.high, rest);
    }
    if (full) _mm512_mask_i64scatter_epi64(words_, full, from, word, 8);
    pending_ = _mm512_mask_mov_epi64(word, full, carry);
    pos = next;
  }

  // Writes the last words, and zeros up to n words.
  void finish(int n) {
    alignas(64) uint64_t last[8], at[8];
    _mm512_store_si512(last, pending_);
    _mm512_store_si512(at, _mm512_srli_epi64(pos, 6));
    for (int lane = 0; lane < 8; lane++) {
      uint64_t* to = words_ + lane * stride_;
      to[at[lane]] = last[lane];
      for (int j = at[lane] + 1; j < n; j++) to[j] = 0;
    }
  }

 private:
  __m512i pending_, first_;  // bits since the last whole word; starts of the lanes
  uint64_t* words_;
  int stride_;
};

// Bit strings of the blocks in a vector of lanes, with a LaneWriter for each 8.
template <class L, int D>
class BlockStrings {
 public:
  using F = Format<typename lanes<L>::word>;

  explicit BlockStrings(int maxbits) : maxbits_(maxbits), n_((maxbits + 63) / 64) {}

  // Starts after the header; a zero block ends at its start.
  LaneWriter writer(int half, L e, L magnitude) {
    L some = magnitude != 0 ? L{} + 1 : L{};
    __m512i live = widen(some, half);
    auto times = [&](int v) { return _mm512_mullo_epi64(live, _mm512_set1_epi64(v)); };
    return {words_ + half * 8 * stride(), stride(), times(F::header), times(maxbits_),
            widen((e + e + 1) * some, half)};
  }

  void put(LaneWriter* writers, int count, StreamWriter& out) {
    for (int i = 0; i < lanes<L>::n / 8; i++) writers[i].finish(n_);
    for (int lane = 0; lane < count; lane++) out.put(words_ + lane * stride(), maxbits_);
  }

 private:
  int maxbits_, n_;
  uint64_t words_[lanes<L>::n * ((1 << 2 * D) * sizeof(typename lanes<L>::word) / 8 + 1)];

  int stride() const { return n_ + 1; }

  static __m512i widen(L v, int half) {
    if constexpr (lanes<L>::n == 8) return __m512i(v);
    else {
      __m512i all = __m512i(v);
      return _mm512_cvtepu32_epi64(half ? _mm512_extracti64x4_epi64(all, 1) : _mm512_castsi512_si256(all));
    }
  }
};

// Converts 64-bit lanes to the lanes of blocks.
template <class L>
inline L narrow_lanes(const __m512i* v) {
  if constexpr (lanes<L>::n == 8) return L(v[0]);
  else return shuffle(L(v[0]), L(v[1]), Every<2, 0>());
}

}  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
#endif
