// ZFP's plane encoder for 2-D blocks with AVX-512: one block in each 64-bit lane, four planes per step. A
// plane's n is known from the planes above it, so the four are coded side by side and then joined.
#pragma once
#include "expand.h"

#if defined(__AVX512BW__)
namespace compcoll {
namespace CC_LEVEL {
namespace zfp {

// Planes of 16 bits in 32-bit elements, with the lengths of their codes.
struct SquareCodes { __m512i code, length; };

// x: planes; n: as in ../../zfp_planes.h, and n_next for the plane below; expanded: x >> n without coefficient 15.
inline SquareCodes square_codes(__m512i x, __m512i n, __m512i n_next, __m512i expanded, __m512i extra) {
  const __m512i one = _mm512_set1_epi32(1), all = _mm512_set1_epi32(16);
  __mmask16 tested = _mm512_cmplt_epi32_mask(n, all);
  __mmask16 last = _mm512_mask_test_epi32_mask(tested, x, _mm512_set1_epi32(1 << 15));
  __m512i test = _mm512_maskz_sllv_epi32(tested, one, n);
  __m512i behind = _mm512_sllv_epi32(_mm512_set1_epi32(-1), n);
  __m512i code = _mm512_ternarylogic_epi32(test, behind, x, 0xf2);  // a | (c & ~b)
  // Where the test that ends the plane is: behind the bits up to n_next and one more for each 1 of them.
  __m512i clear = _mm512_add_epi32(n_next, extra);
  clear = _mm512_mask_sub_epi32(clear, last, clear, one);
  __m512i end = _mm512_maskz_sllv_epi32(tested & ~last, one, clear);
  expanded = _mm512_sllv_epi32(expanded, _mm512_add_epi32(n, one));
  code = _mm512_ternarylogic_epi32(code, expanded, end, either_but);
  return {code, _mm512_mask_add_epi32(clear, tested, clear, one)};
}

// 8 blocks on the way from planes to bits.
struct SquareEncoder {
  LaneWriter out;
  __m512i seen = _mm512_setzero_si512();    // in each 16 bits, the planes so far together
  __m512i n_last = _mm512_setzero_si512();  // n, in the upper half of a lane
  __m512i complete = _mm512_setzero_si512();

  // Four planes of each block, the highest in the lowest 16 bits.
  void put(__m512i x) {
    const __m512i pair = _mm512_set1_epi32(0xffff), word = _mm512_set1_epi32(32);
    const __m512i fourth =
        _mm512_broadcast_i32x4(_mm_setr_epi8(6, 7, 6, 7, 6, 7, 6, 7, 14, 15, 14, 15, 14, 15, 14, 15));
    __m512i t = _mm512_or_si512(x, _mm512_slli_epi64(x, 16));
    seen = _mm512_ternarylogic_epi64(seen, t, _mm512_slli_epi64(t, 32), 0xfe);  // a | b | c
    // Planes 0 and 2 are the even 16-bit elements; n of a plane is what the one above it leaves.
    __m512i n_odd = _mm512_sub_epi32(word, _mm512_lzcnt_epi32(_mm512_and_si512(seen, pair)));
    __m512i n_even = _mm512_sub_epi32(word, _mm512_lzcnt_epi32(_mm512_srli_epi32(seen, 16)));
    __m512i n_first = _mm512_or_si512(_mm512_srli_epi64(n_last, 32), _mm512_slli_epi64(n_even, 32));
    n_last = n_even;
    seen = _mm512_shuffle_epi8(seen, fourth);

    __m512i even = _mm512_and_si512(x, pair), odd = _mm512_srli_epi32(x, 16);
    const __m512i others = _mm512_set1_epi32(0x7fff);
    __m512i rest = _mm512_srlv_epi32(_mm512_and_si512(odd, others), n_odd);
    rest = _mm512_or_si512(_mm512_slli_epi32(rest, 16),
                           _mm512_srlv_epi32(_mm512_and_si512(even, others), n_first));
    Expanded16 code = expand16(rest);
    __m512i extra = _mm512_sub_epi16(code.length, _mm512_set1_epi16(16));
    SquareCodes a = square_codes(even, n_first, n_odd, code.even, _mm512_and_si512(extra, pair));
    SquareCodes b = square_codes(odd, n_odd, n_even, code.odd, _mm512_srli_epi32(extra, 16));

    LaneBits128 bits = join4(a.code, b.code, a.length, b.length);
    __mmask8 within = _mm512_cmple_epi64_mask(_mm512_add_epi64(out.pos, bits.length), out.end);
    if (within == 0xff) complete = _mm512_add_epi64(complete, _mm512_set1_epi64(4));
    else count(a.length, b.length);
    out.put(bits, _mm512_cmpgt_epi64_mask(bits.length, _mm512_set1_epi64(64)));
  }

 private:
  // Which of the four planes are complete.
  void count(__m512i even_length, __m512i odd_length) {
    const __m512i half = _mm512_set1_epi64(0xffffffff), one = _mm512_set1_epi64(1);
    __m512i at = out.pos;
    for (int i = 0; i < 4; i++) {
      __m512i length = i % 2 ? odd_length : even_length;
      at = _mm512_add_epi64(at, i < 2 ? _mm512_and_si512(length, half) : _mm512_srli_epi64(length, 32));
      complete = _mm512_mask_add_epi64(complete, _mm512_cmple_epi64_mask(at, out.end), complete, one);
    }
  }
};

// For float64; 16 blocks of float32 fill the lanes of SquareCoder.
template <class L>
struct SquarePlaneCoder {
  using W = typename lanes<L>::word;
  static_assert(sizeof(W) == 8, "a lane holds four planes");
  int maxbits;

  L encode(const L* planes, L e, L magnitude, int count, StreamWriter& out) const {
    BlockStrings<L, 2> strings(maxbits);
    SquareEncoder encoder{strings.writer(0, e, magnitude)};
    L fours[4][4];  // fours[q][g]: planes 16 g + 15 - 4 q and the three below
    for (int q = 0; q < 4; q++) {
      for (int i = 0; i < 4; i++) fours[q][i] = planes[15 - 4 * q - i];
      exchange_among<4, 32>(fours[q], 1);
    }
    for (int step = 0; step < 16 && encoder.out.more(); step++)
      encoder.put(__m512i(fours[step % 4][3 - step / 4]));
    strings.put(&encoder.out, count, out);
    return W(64) - L(encoder.complete);
  }
};

}  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
#endif
