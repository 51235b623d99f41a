// ZFP's plane decoder for 3-D blocks with AVX-512: one block in each 64-bit lane, one plane per step.
//
// A window is the 64 bits at a block's position, with zeros after the block's end. After the first n bits and
// the first test, a 0 stands for itself, and a 1 is followed by the next test. So tests follow the 1s of a
// run at positions of one parity, as in a string with escapes, and one subtraction finds them all: x below.
// The first test that is 0 ends the plane; the other bits are the plane's.
#pragma once
#include "stream.h"

#if defined(__AVX512BW__)
namespace compcoll {
namespace CC_LEVEL {
namespace zfp {

constexpr uint64_t odd_places = 0xaaaaaaaaaaaaaaaa;

inline uint64_t window(const uint8_t* payload, uint64_t pos, uint64_t end) {
  if (pos >= end) return 0;
  uint64_t shift = pos & 7, left = end - pos;
  uint64_t w = load<uint64_t>(payload + pos / 8) >> shift;
  w |= load<uint64_t>(payload + pos / 8 + 8) << 1 << (63 - shift);
  return _bzhi_u64(w, left < 64 ? left : 64);
}

// A plane of any length, with n < 64.
inline uint64_t decode_long_plane(const uint8_t* payload, uint64_t& pos, uint64_t end, uint64_t& n) {
  uint64_t plane = _bzhi_u64(window(payload, pos, end), n);
  uint64_t at = pos + n, data = 0, got = 0, left = 63 - n, test = 1;
  for (;;) {
    uint64_t w = window(payload, at, end), ones = w & ~test;
    uint64_t tests = (((ones << 1 | odd_places) - ones) ^ odd_places) ^ (ones | test);
    uint64_t ends = tests & ~w;
    uint64_t places = ~tests & (ends ^ (ends - 1));
    bool cut = !ends && (w & places) >> 63;  // the last bit is a 1 whose test is not seen
    places = _bzhi_u64(places, 64 - cut);
    uint64_t count = _mm_popcnt_u64(places), next = _pext_u64(w, places);
    if (!ends && count < left) {
      data |= next << got;
      got += count;
      left -= count;
      at += 64 - cut;
      test = 0;
      continue;
    }
    if (!ends || count > left) {  // the last coefficient's 1 is implied
      next = _bzhi_u64(next, left);
      pos = at + test + left + _mm_popcnt_u64(next);
      uint64_t over = pos > end ? pos - end : 0;  // the scan has reached the end
      data |= next << got | uint64_t(1) << ((got + left - over) & 63);
      plane |= data << n;
      n = 64;
      return plane;
    }
    pos = at + _tzcnt_u64(ends) + 1;
    plane |= (data | next << got) << n;
    n += got + count;
    return plane;
  }
}

inline __m512i popcount64(__m512i v) {
  const __m512i low = _mm512_set1_epi8(15);
  const __m512i ones = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4));
  __m512i a = _mm512_shuffle_epi8(ones, _mm512_and_si512(v, low));
  __m512i b = _mm512_shuffle_epi8(ones, _mm512_and_si512(_mm512_srli_epi64(v, 4), low));
  return _mm512_sad_epu8(_mm512_add_epi8(a, b), _mm512_setzero_si512());
}

// 8 blocks of a payload that has 16 bytes after the last of them.
class Windows {
 public:
  Windows(const uint8_t* payload, __m512i pos, __m512i end)
      : payload_(payload), base_(_mm512_sub_epi64(end, word())), n_(_mm512_setzero_si512()) {
    go_to(pos);
  }

  // Reads up to the planes; returns e, and in `zeros` the number of planes before the first with a 1.
  template <class F>
  __m512i start(__m512i& zeros) {
    const __m512i one = _mm512_set1_epi64(1);
    __m512i head = window_;
    __mmask8 some = _mm512_test_epi64_mask(head, one);
    advance(_mm512_max_epi64(_mm512_set1_epi64(64 - F::header), gone_));
    __m512i lowest = _mm512_andnot_si512(window_, _mm512_sub_epi64(window_, one));
    __m512i others = _mm512_lzcnt_epi64(lowest);
    zeros = _mm512_sub_epi64(word(), others);
    __mmask8 any = _mm512_mask_cmplt_epi64_mask(some, zeros, _mm512_set1_epi64(F::bits));
    advance(_mm512_mask_mov_epi64(gone_, any, others));
    return _mm512_maskz_and_epi64(some, _mm512_srli_epi64(head, 1), _mm512_set1_epi64(2 * F::bias + 1));
  }

  __mmask8 live() const { return _mm512_cmplt_epi64_mask(gone_, word()); }

  // The next plane of each block; all zeros after the last one.
  __attribute__((always_inline)) void step(uint64_t* planes) {
    const __m512i odd = _mm512_set1_epi64(odd_places), minus = _mm512_set1_epi64(-1);
    const __m512i one = _mm512_set1_epi64(1);
    __m512i w = window_;
    __m512i test = _mm512_sllv_epi64(one, n_);  // none if n = 64
    __m512i rest = _mm512_sllv_epi64(minus, n_);
    __m512i ones = _mm512_ternarylogic_epi64(w, rest, test, 0x40);  // w & rest & ~test
    __m512i x = _mm512_sub_epi64(_mm512_or_si512(_mm512_add_epi64(ones, ones), odd), ones);
    x = _mm512_ternarylogic_epi64(x, ones, test, 0x1e);  // x ^ (ones | test)
    __m512i tests = _mm512_xor_si512(x, odd);
    __m512i ends = _mm512_andnot_si512(w, tests);
    __m512i seen = _mm512_xor_si512(ends, _mm512_add_epi64(ends, minus));
    __m512i places = _mm512_andnot_si512(tests, seen);
    __mmask8 endless = _mm512_testn_epi64_mask(ends, ends) & _mm512_test_epi64_mask(rest, rest);
    // A scan that reaches the block's end puts a 1 there: in the window, if the end is no test.
    w = _mm512_mask_or_epi64(w, endless, w, _mm512_rorv_epi64(one, gone_));
    alignas(64) uint64_t from[8], at[8];
    _mm512_store_si512(from, w);
    _mm512_store_si512(at, places);
    for (int lane = 0; lane < 8; lane++) planes[lane] = _pext_u64(from[lane], at[lane]);
    __m512i others = _mm512_max_epi64(_mm512_lzcnt_epi64(seen), gone_);
    __mmask8 beyond = _mm512_mask_cmple_epi64_mask(endless, gone_, _mm512_setzero_si512());
    if (beyond) return step_long(planes, beyond, others, popcount64(places));
    advance(others);
    n_ = popcount64(places);
  }

 private:
  const uint8_t* payload_;
  __m512i base_;  // a word before each block's end
  __m512i gone_;  // bits of the window beyond the end; negative if more than a word is left
  __m512i n_;  // as in decode_plane
  __m512i window_;  // the next 64 bits

  static __m512i word() { return _mm512_set1_epi64(64); }

  void go_to(__m512i pos) {  // at most the end
    gone_ = _mm512_sub_epi64(pos, base_);
    window_ = load(pos, gone_);
  }

  // Advances by all bits of the window but `others`, at most to the end.
  void advance(__m512i others) {
    gone_ = _mm512_add_epi64(gone_, _mm512_sub_epi64(word(), others));
    window_ = load(_mm512_add_epi64(base_, gone_), gone_);
  }

  __m512i load(__m512i pos, __m512i gone) const {
    __m512i byte = _mm512_srli_epi64(pos, 3), shift = _mm512_and_si512(pos, _mm512_set1_epi64(7));
    __m512i low = _mm512_srlv_epi64(_mm512_i64gather_epi64(byte, payload_, 1), shift);
    __m512i high =
        _mm512_sllv_epi64(_mm512_i64gather_epi64(byte, payload_ + 8, 1), _mm512_sub_epi64(word(), shift));
    __m512i behind = _mm512_sllv_epi64(_mm512_set1_epi64(-1), _mm512_sub_epi64(word(), gone));
    return _mm512_ternarylogic_epi64(low, high, behind, 0x54);  // (low | high) & ~behind
  }

  // Advances by all but `others` bits and to next_n. The lanes in `which` have a plane longer than a window.
  __attribute__((noinline)) void step_long(uint64_t* planes, uint32_t which, __m512i others, __m512i next_n) {
    alignas(64) uint64_t old_pos[8], old_n[8], new_pos[8], new_n[8], stop[8];
    const __m512i pos = _mm512_add_epi64(base_, gone_), end = _mm512_add_epi64(base_, word());
    _mm512_store_si512(old_pos, pos);
    _mm512_store_si512(old_n, n_);
    _mm512_store_si512(new_pos, _mm512_add_epi64(pos, _mm512_sub_epi64(word(), others)));
    _mm512_store_si512(new_n, next_n);
    _mm512_store_si512(stop, end);
    for (; which; which &= which - 1) {
      int lane = trailing_zeros(which);
      planes[lane] = decode_long_plane(payload_, old_pos[lane], stop[lane], old_n[lane]);
      new_pos[lane] = old_pos[lane];
      new_n[lane] = old_n[lane];
    }
    go_to(_mm512_min_epi64(_mm512_load_si512(new_pos), end));
    n_ = _mm512_load_si512(new_n);
  }
};

}  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
#endif
