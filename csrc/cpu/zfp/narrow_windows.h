// ZFP's plane decoder for 2-D blocks with AVX-512: as windows.h, but a plane has at most 31 bits, so
// there is one block in each 32-bit lane. Tests are taken out one by one: few planes have many.
#pragma once
#include "stream.h"
#include "transform.h"

#if defined(__AVX512BW__)
namespace compcoll {
namespace CC_LEVEL {
namespace zfp {

inline __m512i popcount32(__m512i v) {  // v < 2^16
  const __m512i low = _mm512_set1_epi8(15);
  const __m512i ones = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4));
  __m512i a = _mm512_shuffle_epi8(ones, _mm512_and_si512(v, low));
  __m512i b = _mm512_shuffle_epi8(ones, _mm512_and_si512(_mm512_srli_epi32(v, 4), low));
  __m512i bytes = _mm512_add_epi8(a, b);
  return _mm512_and_si512(_mm512_add_epi32(bytes, _mm512_srli_epi32(bytes, 8)), _mm512_set1_epi32(31));
}

// 16 blocks of a payload that has 16 bytes behind the last of them. Positions count from its begin. Held:
// blocks of at most so many words, 1 or 2, which are read once; 0: of any length.
template <int Held>
struct NarrowWindows {
  const uint8_t* payload;
  __m512i pos, end, n = _mm512_setzero_si512();
  __m512i begin, low, high;

  NarrowWindows(const uint8_t* payload, __m512i pos, __m512i end)
      : payload(payload), pos(pos), end(end), begin(pos) {
    if constexpr (Held > 0) low = load(pos);
    if constexpr (Held > 1) high = load(_mm512_min_epi32(_mm512_add_epi32(pos, _mm512_set1_epi32(32)), end));
  }

  __m512i see(__m512i from) const {  // from <= end
    if constexpr (!Held) return load(from);
    const __m512i word = _mm512_set1_epi32(32);
    __m512i shift = _mm512_sub_epi32(from, begin);  // by more than a word in either direction gives 0
    __m512i first = _mm512_srlv_epi32(low, shift);
    if constexpr (Held == 1) return first;
    __m512i next = _mm512_sllv_epi32(high, _mm512_sub_epi32(word, shift));
    __m512i last = _mm512_srlv_epi32(high, _mm512_sub_epi32(shift, word));
    return _mm512_ternarylogic_epi32(first, next, last, 0xfe);  // of all three
  }

  __m512i load(__m512i from) const {
    __m512i byte = _mm512_srli_epi32(from, 3), shift = _mm512_and_si512(from, _mm512_set1_epi32(7));
    __m512i a = _mm512_i32gather_epi64(_mm512_castsi512_si256(byte), payload, 1);
    __m512i b = _mm512_i32gather_epi64(_mm512_extracti64x4_epi64(byte, 1), payload, 1);
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    __m512i low = _mm512_permutex2var_epi32(a, even, b);
    __m512i high = _mm512_permutex2var_epi32(a, _mm512_or_si512(even, _mm512_set1_epi32(1)), b);
    low = _mm512_srlv_epi32(low, shift);
    high = _mm512_sllv_epi32(high, _mm512_sub_epi32(_mm512_set1_epi32(32), shift));
    __m512i behind = _mm512_sllv_epi32(_mm512_set1_epi32(-1), _mm512_sub_epi32(end, from));
    return _mm512_ternarylogic_epi32(low, high, behind, 0x54);  // (low | high) & ~behind
  }

  static __m512i zeros_below(__m512i v) {  // 32 where v is 0
    __m512i lowest = _mm512_andnot_si512(v, _mm512_sub_epi32(v, _mm512_set1_epi32(1)));
    return _mm512_sub_epi32(_mm512_set1_epi32(32), _mm512_lzcnt_epi32(lowest));
  }

  // Reads what precedes the planes; returns e, and in `zeros` the planes before the first that has a 1.
  template <class F>
  __m512i start(__m512i& zeros) {
    const __m512i word = _mm512_set1_epi32(32);
    __m512i head = see(pos);
    __mmask16 some = _mm512_test_epi32_mask(head, _mm512_set1_epi32(1));
    __m512i from = _mm512_min_epi32(_mm512_add_epi32(pos, _mm512_set1_epi32(F::header)), end);
    zeros = zeros_below(see(from));
    __mmask16 none = _mm512_cmpeq_epi32_mask(zeros, word);
    if (F::bits == 64 && none) {
      __m512i next = zeros_below(see(_mm512_min_epi32(_mm512_add_epi32(from, word), end)));
      zeros = _mm512_mask_add_epi32(zeros, none, next, word);
    }
    __mmask16 any = _mm512_mask_cmplt_epi32_mask(some, zeros, _mm512_set1_epi32(F::bits));
    pos = _mm512_mask_add_epi32(end, any, from, zeros);
    return _mm512_maskz_and_epi32(some, _mm512_srli_epi32(head, 1), _mm512_set1_epi32(2 * F::bias + 1));
  }

  __mmask16 live() const { return _mm512_cmplt_epi32_mask(pos, end); }

  // The next plane of each block, all zeros behind the last one.
  __m512i step() {
    const __m512i one = _mm512_set1_epi32(1), minus = _mm512_set1_epi32(-1);
    const __m512i odd = _mm512_set1_epi32(0xaaaaaaaa), all = _mm512_set1_epi32(16);
    __m512i w = see(pos);
    __mmask16 tested = _mm512_cmplt_epi32_mask(n, all);
    if (!tested) {
      pos = _mm512_min_epi32(_mm512_add_epi32(pos, all), end);
      return _mm512_and_si512(w, _mm512_set1_epi32(0xffff));
    }
    __m512i test = _mm512_maskz_sllv_epi32(tested, one, n), rest = _mm512_sllv_epi32(minus, n);
    __m512i ones = _mm512_ternarylogic_epi32(w, rest, test, 0x40);  // w & rest & ~test
    __m512i x = _mm512_sub_epi32(_mm512_or_si512(_mm512_add_epi32(ones, ones), odd), ones);
    x = _mm512_ternarylogic_epi32(x, ones, test, 0x1e);  // x ^ (ones | test)
    __m512i tests = _mm512_xor_si512(x, odd);
    __m512i ends = _mm512_andnot_si512(w, tests);
    __m512i seen = _mm512_xor_si512(ends, _mm512_add_epi32(ends, minus));
    seen = _mm512_mask_mov_epi32(_mm512_set1_epi32(0xffff), tested, seen);
    __m512i length = _mm512_sub_epi32(_mm512_set1_epi32(32), _mm512_lzcnt_epi32(seen));
    __m512i next_n = _mm512_mask_sub_epi32(length, tested, length, one);
    next_n = _mm512_mask_sub_epi32(next_n, _mm512_mask_test_epi32_mask(tested, w, test), next_n, one);

    // The first test is taken out, then each that is a 1; one that is 0 stands behind the plane.
    __m512i plane = _mm512_andnot_si512(tests, _mm512_and_si512(w, seen));
    tests = _mm512_maskz_and_epi32(tested, tests, _mm512_srli_epi32(seen, 1));
    __mmask16 left = _mm512_test_epi32_mask(tests, tests);
    for (bool first = true; left; first = false) {
      __m512i lowest = _mm512_and_si512(tests, _mm512_sub_epi32(_mm512_setzero_si512(), tests));
      __m512i below = _mm512_add_epi32(lowest, minus);
      plane = _mm512_ternarylogic_epi32(below, plane, _mm512_srli_epi32(plane, 1), 0xca);
      tests = _mm512_srli_epi32(_mm512_xor_si512(tests, lowest), 1);
      if (!first) next_n = _mm512_mask_sub_epi32(next_n, left, next_n, one);
      left = _mm512_test_epi32_mask(tests, _mm512_set1_epi32(0x7fff));
    }
    __mmask16 last =
        _mm512_mask_cmpge_epi32_mask(tested, next_n, all) | _mm512_mask_testn_epi32_mask(tested, ends, ends);
    if (last) plane = to_last(plane, last, length);
    pos = _mm512_min_epi32(_mm512_add_epi32(pos, length), end);
    n = _mm512_mask_mov_epi32(next_n, last, all);
    return plane;
  }

 private:
  // Planes whose last coefficient has a 1 that is implied.
  __m512i to_last(__m512i plane, __mmask16 which, __m512i& length) const {
    __m512i others = _mm512_and_si512(plane, _mm512_set1_epi32(0x7fff));
    __m512i tests = popcount32(_mm512_srlv_epi32(others, n));
    length = _mm512_mask_add_epi32(length, which, tests, _mm512_set1_epi32(16));
    // A scan that meets the end leaves its 1 where it stands.
    __m512i over = _mm512_sub_epi32(_mm512_add_epi32(pos, length), end);
    over = _mm512_max_epi32(over, _mm512_setzero_si512());
    __m512i one = _mm512_srlv_epi32(_mm512_set1_epi32(0x8000), over);
    return _mm512_mask_or_epi32(plane, which, others, one);
  }
};

// Decodes 32 blocks side by side: the chain of dependences of one vector would leave the core idle. F: the
// format of the stream. Its planes may be wider than those of L, which then have to be enough.
template <class L, class F = Format<typename lanes<L>::word>>
struct NarrowWindowCoder {
  using W = typename lanes<L>::word;
  static constexpr int blocks = 32, groups = blocks / lanes<L>::n, bits = 8 * sizeof(W);
  // As in WindowCoder.
  static constexpr int most_planes = bits == F::bits ? bits : bits - 4;
  int maxbits;

  // Planes and e of `count` blocks from bit `begin` on, group by group; moved up as decode_quads does.
  // beside(i): what else is to be done before the i-th plane.
  template <class Beside>
  Found decode(const uint8_t* payload, uint64_t nbytes, uint64_t begin, int count, L planes[][16], L* e,
               L* zeros, Beside beside) const {
    uint8_t copy[blocks * 16 * sizeof(typename F::Int) + 32];
    payload = with_room(payload, nbytes, begin, uint64_t(blocks) * maxbits, copy);
    if (maxbits <= 32) return decode<1>(payload, begin % 8, count, planes, e, zeros, beside);
    if (maxbits <= 64) return decode<2>(payload, begin % 8, count, planes, e, zeros, beside);
    return decode<0>(payload, begin % 8, count, planes, e, zeros, beside);
  }

 private:
  template <int Held, class Beside>
  Found decode(const uint8_t* payload, int first, int count, L planes[][16], L* e, L* zeros,
               Beside beside) const {
    auto windows = [&](int i) {
      const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
      __m512i block = _mm512_add_epi32(lane, _mm512_set1_epi32(16 * i)), stop = _mm512_set1_epi32(count);
      __m512i next = _mm512_add_epi32(block, _mm512_set1_epi32(1));
      return NarrowWindows<Held>(payload, bit(_mm512_min_epi32(block, stop), first),
                                 bit(_mm512_min_epi32(next, stop), first));
    };
    NarrowWindows<Held> both[2] = {windows(0), windows(1)};
    __m512i most = _mm512_setzero_si512();
    for (int i = 0; i < 2; i++) {
      __m512i skipped, exponents = both[i].template start<F>(skipped);
      most = _mm512_mask_max_epi32(most, both[i].live(), most, skipped);
      for (int g = 0; g < groups / 2; g++) {
        e[groups / 2 * i + g] = widen(exponents, g);
        zeros[groups / 2 * i + g] = widen(skipped, g);
      }
    }
    for (int g = 0; g < groups; g++)
      for (int i = 0; i < 16; i++) planes[g][i] = L{};
    const int rest = bits - most_planes + (bits == F::bits ? 0 : _mm512_reduce_max_epi32(most));
    __m512i seen = _mm512_setzero_si512();
    auto more = [&] { return (both[0].live() | both[1].live()) != 0; };
    for (int k = bits; k > rest && more();) {
      beside(bits - k);
      k--;
      for (int i = 0; i < 2; i++) {
        __m512i plane = both[i].step();
        seen = _mm512_or_si512(seen, plane);
        for (int g = 0; g < groups / 2; g++)
          planes[groups / 2 * i + g][k % 16] |= widen(plane, g) << (L{} + W(k / 16 * 16));
      }
    }
    if (bits != F::bits && more()) return {-1, 0};
    return {bits, 32 - int(_lzcnt_u32(_mm512_reduce_or_epi32(seen)))};
  }

  __m512i bit(__m512i block, int first) const {
    return _mm512_add_epi32(_mm512_mullo_epi32(block, _mm512_set1_epi32(maxbits)), _mm512_set1_epi32(first));
  }

  static L widen(__m512i v, int half) {
    if constexpr (sizeof(W) == 4) return L(v);
    else return L(_mm512_cvtepu32_epi64(half ? _mm512_extracti64x4_epi64(v, 1) : _mm512_castsi512_si256(v)));
  }
};

}  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
#endif
