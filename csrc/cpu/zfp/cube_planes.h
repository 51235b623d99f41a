// ZFP's plane encoder for 3-D blocks with AVX-512: one block in each 64-bit lane, one plane per step.
#pragma once
#include "expand.h"

#if defined(__AVX512BW__)
namespace compcoll {
namespace CC_LEVEL {
namespace zfp {

// Writes the next plane of 8 blocks. n: as in ../../zfp_planes.h. complete: counts fully stored planes.
inline void put_cube_plane(LaneWriter& out, __m512i x, __m512i& n, __m512i& complete) {
  const __m512i one = _mm512_set1_epi64(1), all = _mm512_set1_epi64(64);
  __mmask8 tested = _mm512_cmplt_epi64_mask(n, all);
  LaneBits128 bits = {x, _mm512_setzero_si512(), all};
  bool high = false;
  if (tested) {
    __mmask8 last = _mm512_movepi64_mask(x) & tested, cleared = tested & ~last;
    __m512i others = _mm512_and_si512(x, _mm512_set1_epi64(~uint64_t(0) >> 1));
    __m512i rest = _mm512_srlv_epi64(others, n), behind = _mm512_sllv_epi64(_mm512_set1_epi64(-1), n);
    __m512i count = _mm512_sub_epi64(all, _mm512_lzcnt_epi64(rest));
    count = _mm512_mask_sub_epi64(count, last, _mm512_set1_epi64(63), n);
    __m512i next = _mm512_add_epi64(n, count), shift = _mm512_add_epi64(n, one);
    LaneBits128 code = expand64(rest);
    // The bits by which 64 bits grow in expansion: one for each 1.
    __m512i clear = _mm512_sub_epi64(_mm512_add_epi64(next, code.length), all);
    bits.length = _mm512_mask_add_epi64(clear, tested, clear, one);
    bits.low = _mm512_ternarylogic_epi64(_mm512_sllv_epi64(one, n), behind, x, 0xf2);  // a | (c & ~b)
    bits.low = _mm512_ternarylogic_epi64(bits.low, _mm512_sllv_epi64(code.low, shift),
                                         _mm512_maskz_sllv_epi64(cleared, one, clear), either_but);
    high = _mm512_cmpgt_epi64_mask(bits.length, all);
    if (high) {
      clear = _mm512_sub_epi64(clear, all);
      bits.high = _mm512_srlv_epi64(code.low, _mm512_sub_epi64(all, shift));
      bits.high = _mm512_ternarylogic_epi64(bits.high, _mm512_sllv_epi64(code.high, shift),
                                            _mm512_maskz_sllv_epi64(cleared, one, clear), either_but);
    }
    n = _mm512_mask_mov_epi64(next, last, all);
  }
  __mmask8 within = _mm512_cmple_epi64_mask(_mm512_add_epi64(out.pos, bits.length), out.end);
  complete = _mm512_mask_add_epi64(complete, within, complete, one);
  out.put(bits, high);
}

template <class L>
struct CubeCoder {
  using W = typename lanes<L>::word;
  static constexpr int bits = Format<W>::bits, halves = lanes<L>::n / 8;
  int maxbits;

  L encode(const L* planes, L e, L magnitude, int count, StreamWriter& out) const {
    BlockStrings<L, 3> strings(maxbits);
    LaneWriter writers[] = {strings.writer(0, e, magnitude), strings.writer(halves - 1, e, magnitude)};
    __m512i n[2] = {}, complete[2] = {};
    for (int k = bits - 1; k >= 0 && (writers[0].more() || (halves > 1 && writers[1].more())); k--) {
      if constexpr (halves == 1) put_cube_plane(writers[0], __m512i(planes[k]), n[0], complete[0]);
      else {
        L low = planes[k], high = planes[k + 32];
        put_cube_plane(writers[0], __m512i(shuffle(low, high, Zip<16, 0>())), n[0], complete[0]);
        put_cube_plane(writers[1], __m512i(shuffle(low, high, Zip<16, 8>())), n[1], complete[1]);
      }
    }
    strings.put(writers, count, out);
    return W(bits) - narrow_lanes<L>(complete);
  }
};

}  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
#endif
