// Lane operations of ZFP's plane coder for which there are no operators: shifts by any count, table look-ups,
// masks. Each has a scalar form, which CUDA threads use, and forms for x86 vectors.
#pragma once
#include "zfp.h"
#if defined(__AVX2__) && !defined(__CUDACC__)
#include <immintrin.h>
// GCC 12 warns about its own _mm512_undefined_epi32() (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace compcoll {
namespace CC_LEVEL {
namespace zfp {

// Shifts by any count, negative ones taken as huge; 0 from the word's width on.
template <class L>
CC_HD L shift_left(L v, L n) {
  constexpr int bits = 8 * sizeof(typename lanes<L>::word);
  return n < typename lanes<L>::word(bits) ? v << (n & (bits - 1)) : L{};
}
template <class L>
CC_HD L shift_right(L v, L n) {
  constexpr int bits = 8 * sizeof(typename lanes<L>::word);
  return n < typename lanes<L>::word(bits) ? v >> (n & (bits - 1)) : L{};
}

// The number of zeros below the lowest 1; the width if there is no 1.
template <class L>
CC_HD L trailing_zeros(L v) {
  using W = typename lanes<L>::word;
  using F = Format<W>;
  // A power of two is exact in floating point; the highest one becomes negative.
  L power = bits_as<L>(convert<typename LaneTypes<L>::Real>(typename LaneTypes<L>::Int(v & -v)));
  L e = ((power >> F::mantissa) & W(2 * F::bias + 1)) - F::bias;
  return v != 0 ? e : L{} + W(F::bits);
}

// floor(log2 v) for 1 <= v < 2^16; undefined for 0.
template <class L>
CC_HD L log2_16(L v) {
  using F = Format<typename lanes<L>::word>;
#if !defined(__CUDACC__)
  if constexpr (F::bits == 64 && lanes<L>::n > 1) {  // 64-bit conversion is slow, or not vectorised
    return (L(log2_16(vec<uint32_t, 2 * lanes<L>::n>(v))) << 32) >> 32;
  } else
#endif
    return (bits_as<L>(convert<typename LaneTypes<L>::Real>(typename LaneTypes<L>::Int(v))) >> F::mantissa) -
           F::bias;
}

// table[index], with 32 entries.
template <class L>
CC_HD L lookup32(const uint32_t* table, L index) {
  if constexpr (lanes<L>::n == 1) return table[index];
  else {
    L r;
    for (int i = 0; i < lanes<L>::n; i++) r[i] = table[index[i]];
    return r;
  }
}

// table[index], with 64 entries.
template <class L>
CC_HD L lookup64(const uint16_t* table, L index) {
  if constexpr (lanes<L>::n == 1) return table[index];
  else {
    L r;
    for (int i = 0; i < lanes<L>::n; i++) r[i] = table[index[i]];
    return r;
  }
}

// table[index] for each byte of a lane; all bytes are less than 16.
template <class L>
CC_HD L lookup16(const uint8_t* table, L index) {
  if constexpr (lanes<L>::n == 1) {
    return table[index & 255] | L(table[index >> 8 & 255]) << 8 | L(table[index >> 16 & 255]) << 16 |
           L(table[index >> 24 & 255]) << 24;
  } else {
    L r;
    for (int i = 0; i < lanes<L>::n; i++) r[i] = lookup16(table, typename lanes<L>::word(index[i]));
    return r;
  }
}

template <class L>
CC_HD bool any_less(L a, L b) {  // signed
  using Int = typename LaneTypes<L>::Int;
  if constexpr (lanes<L>::n == 1) return Int(a) < Int(b);
  else {
    auto less = Int(a) < Int(b);
    bool any = false;
    for (int i = 0; i < lanes<L>::n; i++) any |= less[i] != 0;
    return any;
  }
}

// n + 1 where a <= b, signed, else n.
template <class L>
CC_HD L count_up_to(L n, L a, L b) {
  using Int = typename LaneTypes<L>::Int;
  return Int(a) <= Int(b) ? n + 1 : n;
}

// For a plane of 4 bits that ends `-left` bits after the block's end, if left < 0. The 1 of a scan that was
// cut off there was decoded at the last coefficient, because zeros were read; moves it back to where the bits
// ran out.
template <class L>
CC_HD L move_cut_scan(L plane, L left) {
  using Int = typename LaneTypes<L>::Int;
  L moved = (plane ^ 8) | shift_right(L{} + 8, -left);
  return Int(left) < 0 ? ((plane & 8) != 0 ? moved : plane) : plane;
}

#if defined(__AVX2__) && !defined(__CUDACC__)
#define CC_ZFP_SHIFTS(W, N, M, left, right)                                                                \
  template <> CC_HD vec<W, N> shift_left(vec<W, N> v, vec<W, N> n) { return vec<W, N>(left(M(v), M(n))); } \
  template <> CC_HD vec<W, N> shift_right(vec<W, N> v, vec<W, N> n) { return vec<W, N>(right(M(v), M(n))); }
CC_ZFP_SHIFTS(uint32_t, 8, __m256i, _mm256_sllv_epi32, _mm256_srlv_epi32)
CC_ZFP_SHIFTS(uint64_t, 4, __m256i, _mm256_sllv_epi64, _mm256_srlv_epi64)

using U32x8 = vec<uint32_t, 8>;
using U64x4 = vec<uint64_t, 4>;
template <> CC_HD U32x8 lookup32(const uint32_t* table, U32x8 index) {
  return U32x8(_mm256_i32gather_epi32(reinterpret_cast<const int*>(table), __m256i(index), 4));
}
template <> CC_HD U64x4 lookup32(const uint32_t* table, U64x4 index) {
  auto base = reinterpret_cast<const int*>(table);
  return U64x4(_mm256_cvtepu32_epi64(_mm256_i64gather_epi32(base, __m256i(index), 4)));
}
// Gathers read 4 bytes, so the table has an extra entry.
template <> CC_HD U32x8 lookup64(const uint16_t* table, U32x8 index) {
  return U32x8(_mm256_i32gather_epi32(reinterpret_cast<const int*>(table), __m256i(index), 2)) & 0xffff;
}
template <> CC_HD U64x4 lookup64(const uint16_t* table, U64x4 index) {
  auto base = reinterpret_cast<const int*>(table);
  return U64x4(_mm256_cvtepu32_epi64(_mm256_i64gather_epi32(base, __m256i(index), 2))) & 0xffff;
}
template <> CC_HD U32x8 lookup16(const uint8_t* table, U32x8 index) {
  __m256i both = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(table)));
  return U32x8(_mm256_shuffle_epi8(both, __m256i(index)));
}
template <> CC_HD U64x4 lookup16(const uint8_t* table, U64x4 index) {
  return U64x4(lookup16(table, U32x8(index)));
}
template <> CC_HD bool any_less(U32x8 a, U32x8 b) {
  return _mm256_movemask_epi8(_mm256_cmpgt_epi32(__m256i(b), __m256i(a)));
}
template <> CC_HD bool any_less(U64x4 a, U64x4 b) {
  return _mm256_movemask_epi8(_mm256_cmpgt_epi64(__m256i(b), __m256i(a)));
}
#endif

#if defined(__AVX512BW__) && !defined(__CUDACC__)
CC_ZFP_SHIFTS(uint32_t, 16, __m512i, _mm512_sllv_epi32, _mm512_srlv_epi32)
CC_ZFP_SHIFTS(uint64_t, 8, __m512i, _mm512_sllv_epi64, _mm512_srlv_epi64)

using U32x16 = vec<uint32_t, 16>;
using U64x8 = vec<uint64_t, 8>;
template <> CC_HD U32x16 lookup32(const uint32_t* table, U32x16 index) {
  __m512i low = _mm512_loadu_si512(table), high = _mm512_loadu_si512(table + 16);
  return U32x16(_mm512_permutex2var_epi32(low, __m512i(index), high));
}
template <> CC_HD U64x8 lookup32(const uint32_t* table, U64x8 index) {
  __m512i low = _mm512_loadu_si512(table), high = _mm512_loadu_si512(table + 16);
  return U64x8(_mm512_maskz_permutex2var_epi32(0x5555, low, __m512i(index), high));
}
template <> CC_HD U32x16 lookup64(const uint16_t* table, U32x16 index) {
  __m512i low = _mm512_loadu_si512(table), high = _mm512_loadu_si512(table + 32);
  return U32x16(_mm512_maskz_permutex2var_epi16(0x55555555, low, __m512i(index), high));
}
template <> CC_HD U64x8 lookup64(const uint16_t* table, U64x8 index) {
  __m512i low = _mm512_loadu_si512(table), high = _mm512_loadu_si512(table + 32);
  return U64x8(_mm512_maskz_permutex2var_epi16(0x11111111, low, __m512i(index), high));
}
template <> CC_HD U32x16 lookup16(const uint8_t* table, U32x16 index) {
  __m512i four = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(table)));
  return U32x16(_mm512_shuffle_epi8(four, __m512i(index)));
}
template <> CC_HD U64x8 lookup16(const uint8_t* table, U64x8 index) {
  return U64x8(lookup16(table, U32x16(index)));
}
// Bytes are exchanged in one instruction, bits in two.
template <int S, class L>
CC_HD void exchange512(L& low, L& high) {
  __m512i l = __m512i(low), h = __m512i(high);
  if constexpr (S >= 8) {
    constexpr uint64_t up = ~uint64_t(0) / ((uint64_t(1) << S / 8) + 1) << S / 8;
    const __m512i lane =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    const __m512i other = _mm512_xor_si512(lane, _mm512_set1_epi8(S / 8));
    low = L(_mm512_mask_shuffle_epi8(l, up, h, other));
    high = L(_mm512_mask_shuffle_epi8(h, up >> S / 8, l, other));
  } else {
    const __m512i mask = _mm512_set1_epi64(~uint64_t(0) / ((uint64_t(1) << S) + 1));
    low = L(_mm512_ternarylogic_epi64(mask, l, _mm512_slli_epi64(h, S), 0xca));  // mask ? l : h << S
    high = L(_mm512_ternarylogic_epi64(mask, _mm512_srli_epi64(l, S), h, 0xca));
  }
}
template <int S>
struct Exchange<S, U32x16> {
  CC_HD static void run(U32x16& low, U32x16& high) { exchange512<S>(low, high); }
};
template <int S>
struct Exchange<S, U64x8> {
  CC_HD static void run(U64x8& low, U64x8& high) { exchange512<S>(low, high); }
};
template <> CC_HD bool any_less(U32x16 a, U32x16 b) {
  return _mm512_cmplt_epi32_mask(__m512i(a), __m512i(b));
}
template <> CC_HD bool any_less(U64x8 a, U64x8 b) { return _mm512_cmplt_epi64_mask(__m512i(a), __m512i(b)); }
template <> CC_HD U32x16 count_up_to(U32x16 n, U32x16 a, U32x16 b) {
  __mmask16 m = _mm512_cmple_epi32_mask(__m512i(a), __m512i(b));
  return U32x16(_mm512_mask_add_epi32(__m512i(n), m, __m512i(n), _mm512_set1_epi32(1)));
}
template <> CC_HD U64x8 count_up_to(U64x8 n, U64x8 a, U64x8 b) {
  __mmask8 m = _mm512_cmple_epi64_mask(__m512i(a), __m512i(b));
  return U64x8(_mm512_mask_add_epi64(__m512i(n), m, __m512i(n), _mm512_set1_epi64(1)));
}
template <> CC_HD U32x16 move_cut_scan(U32x16 plane, U32x16 left) {
  __m512i eight = _mm512_set1_epi32(8), behind = _mm512_sub_epi32(_mm512_setzero_si512(), __m512i(left));
  __mmask16 m = _mm512_mask_test_epi32_mask(_mm512_movepi32_mask(__m512i(left)), __m512i(plane), eight);
  __m512i moved = _mm512_srlv_epi32(eight, behind);  // below: (plane ^ eight) | moved
  return U32x16(_mm512_mask_ternarylogic_epi32(__m512i(plane), m, eight, moved, 0xbe));
}
template <> CC_HD U64x8 move_cut_scan(U64x8 plane, U64x8 left) {
  __m512i eight = _mm512_set1_epi64(8), behind = _mm512_sub_epi64(_mm512_setzero_si512(), __m512i(left));
  __mmask8 m = _mm512_mask_test_epi64_mask(_mm512_movepi64_mask(__m512i(left)), __m512i(plane), eight);
  __m512i moved = _mm512_srlv_epi64(eight, behind);
  return U64x8(_mm512_mask_ternarylogic_epi64(__m512i(plane), m, eight, moved, 0xbe));
}
#endif
#undef CC_ZFP_SHIFTS

}  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
