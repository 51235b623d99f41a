// Vectors of 64 bytes, and 64-bit masks with one bit per byte.
#pragma once
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "../lanes.h"

namespace compcoll {
#if defined(__AVX512BW__)
constexpr bool slow_bmi2 = false;  // no processor with AVX-512 has it
#else
extern const bool slow_bmi2;
#endif

namespace CC_LEVEL {

// Enough vectors of the level for 64 bytes. (One vector type of 64 bytes would do, but where the
// machine has none, g++ splits its comparisons into single bytes. And g++ copies a plain struct in pieces of
// 16 bytes, for which a wider load then has to wait.)
struct Bytes64 {
  using SubVector = vec<uint8_t, vector_nbytes>;
  static constexpr int parts = 64 / vector_nbytes;
  SubVector part[parts];

  Bytes64() = default;
  CC_HD Bytes64(const Bytes64& other) { *this = other; }
  CC_HD Bytes64& operator=(const Bytes64& other) {
    for (int i = 0; i < parts; i++) part[i] = other.part[i];
    return *this;
  }
  CC_HD static Bytes64 load(const uint8_t* p) {
    Bytes64 v;
    for (int i = 0; i < parts; i++) v.part[i] = CC_LEVEL::load<SubVector>(p + i * vector_nbytes);
    return v;
  }
  CC_HD void store(uint8_t* p) const {
    for (int i = 0; i < parts; i++) CC_LEVEL::store(p + i * vector_nbytes, part[i]);
  }
};

template <class F>
CC_HD Bytes64 map(Bytes64 v, F f) {
  for (int i = 0; i < Bytes64::parts; i++) v.part[i] = f(v.part[i]);
  return v;
}
CC_HD Bytes64 operator+(Bytes64 a, Bytes64 b) {
  for (int i = 0; i < Bytes64::parts; i++) a.part[i] += b.part[i];
  return a;
}
CC_HD Bytes64 operator|(Bytes64 a, Bytes64 b) {
  for (int i = 0; i < Bytes64::parts; i++) a.part[i] |= b.part[i];
  return a;
}
CC_HD Bytes64 operator&(Bytes64 a, Bytes64 b) {
  for (int i = 0; i < Bytes64::parts; i++) a.part[i] &= b.part[i];
  return a;
}
CC_HD Bytes64 operator&(Bytes64 a, uint8_t mask) {
  return map(a, [=](auto p) { return p & mask; });
}
CC_HD Bytes64 splat(uint8_t x) {
  return map(Bytes64{}, [=](auto v) { return v + x; });
}

template <class F>
CC_HD uint8_t reduce(Bytes64 v, F f) {
  uint8_t result = v.part[0][0];
  for (int i = 0; i < 64; i++) result = f(result, v.part[i / vector_nbytes][i % vector_nbytes]);
  return result;
}

// Deposits the low bits of `bits`, in order, at the set bits of the mask; and the inverse.
CC_HD uint64_t deposit(uint64_t bits, uint64_t mask) {
#if defined(__BMI2__)
  if (!slow_bmi2) return _pdep_u64(bits, mask);
#endif
  uint64_t result = 0;
  for (; mask; mask &= mask - 1, bits >>= 1) result |= (mask & -mask) & (0 - (bits & 1));
  return result;
}
CC_HD uint64_t extract(uint64_t bits, uint64_t mask) {
#if defined(__BMI2__)
  if (!slow_bmi2) return _pext_u64(bits, mask);
#endif
  uint64_t result = 0;
  for (int k = 0; mask; mask &= mask - 1, k++) result |= uint64_t((bits & mask & -mask) != 0) << k;
  return result;
}

// The top bit of each byte.
CC_HD uint64_t top_bits(Bytes64 v) {
  uint64_t bits = 0;
  for (int i = 0; i < Bytes64::parts; i++) {
#if defined(__AVX512BW__)
    bits = _mm512_movepi8_mask(__m512i(v.part[i]));
#elif defined(__AVX2__)
    bits |= uint64_t(uint32_t(_mm256_movemask_epi8(__m256i(v.part[i])))) << (32 * i);
#elif defined(__SSE2__)
    bits |= uint64_t(uint32_t(_mm_movemask_epi8(__m128i(v.part[i])))) << (16 * i);
#else
    auto word = vec<uint64_t, 2>(v.part[i]);
    for (int k = 0; k < 2; k++)
      bits |= ((word[k] >> 7 & 0x0101010101010101u) * 0x0102040810204080u >> 56) << (16 * i + 8 * k);
#endif
  }
  return bits;
}

// Bit k of each byte. Shifts 16-bit words, because there are no shifts of bytes; bits that cross into the
// next byte stay below its top bit.
CC_HD uint64_t bits_at(Bytes64 v, int k) {
  using Words = vec<uint16_t, vector_nbytes / 2>;
  return top_bits(map(v, [=](auto p) { return Bytes64::SubVector(Words(p) << (7 - k)); }));
}

// Comparisons take vectors on both sides, so that a loop makes a constant's vector only once.
CC_HD uint64_t at_least(Bytes64 v, Bytes64 least) {
#if defined(__AVX512BW__)
  return _mm512_cmpge_epu8_mask(__m512i(v.part[0]), __m512i(least.part[0]));
#else
  for (int i = 0; i < Bytes64::parts; i++) v.part[i] = Bytes64::SubVector(v.part[i] >= least.part[i]);
  return top_bits(v);
#endif
}

CC_HD uint64_t equal(Bytes64 v, Bytes64 to) {
#if defined(__AVX512BW__)
  return _mm512_cmpeq_epi8_mask(__m512i(v.part[0]), __m512i(to.part[0]));
#else
  for (int i = 0; i < Bytes64::parts; i++) v.part[i] = Bytes64::SubVector(v.part[i] == to.part[i]);
  return top_bits(v);
#endif
}

// yes[i] if a[i] = b[i], else no[i].
CC_HD Bytes64 equal_select(Bytes64 a, Bytes64 b, Bytes64 yes, Bytes64 no) {
  for (int i = 0; i < Bytes64::parts; i++) {
#if defined(__AVX512BW__)
    __mmask64 same = _mm512_cmpeq_epi8_mask(__m512i(a.part[i]), __m512i(b.part[i]));
    no.part[i] = Bytes64::SubVector(_mm512_mask_mov_epi8(__m512i(no.part[i]), same, __m512i(yes.part[i])));
#else
    auto same = Bytes64::SubVector(a.part[i] == b.part[i]);
    no.part[i] = (same & yes.part[i]) | (~same & no.part[i]);
#endif
  }
  return no;
}

// max(v - s, 0).
CC_HD Bytes64 subtract_to_zero(Bytes64 v, Bytes64 s) {
  for (int i = 0; i < Bytes64::parts; i++) {
    Bytes64::SubVector &p = v.part[i], q = s.part[i];
#if defined(__AVX512BW__)
    p = Bytes64::SubVector(_mm512_subs_epu8(__m512i(p), __m512i(q)));
#elif defined(__AVX2__)
    p = Bytes64::SubVector(_mm256_subs_epu8(__m256i(p), __m256i(q)));
#elif defined(__SSE2__)
    p = Bytes64::SubVector(_mm_subs_epu8(__m128i(p), __m128i(q)));
#else
    p = (p - q) & Bytes64::SubVector(p >= q);
#endif
  }
  return v;
}

// 255 where the bit is set, 0 elsewhere.
CC_HD Bytes64 spread(uint64_t bits) {
  Bytes64 v;
  for (int i = 0; i < Bytes64::parts; i++) {
#if defined(__AVX512BW__)
    v.part[i] = Bytes64::SubVector(_mm512_movm_epi8(bits));
#elif defined(__AVX2__)
    const __m256i byte = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x(int64_t(0x8040201008040201u));
    __m256i p = _mm256_shuffle_epi8(_mm256_set1_epi32(int32_t(bits >> (32 * i))), byte);
    v.part[i] = Bytes64::SubVector(_mm256_cmpeq_epi8(_mm256_and_si256(p, bit), bit));
#else
    uint64_t low = bits >> (16 * i) & 255, high = bits >> (16 * i + 8) & 255;
    auto bit = Bytes64::SubVector(vec<uint64_t, 2>{0x8040201008040201u, 0x8040201008040201u});
    auto p = Bytes64::SubVector(vec<uint64_t, 2>{low * 0x0101010101010101u, high * 0x0101010101010101u});
    v.part[i] = Bytes64::SubVector((p & bit) == bit);
#endif
  }
  return v;
}

// v + 1 where the bit is set.
CC_HD Bytes64 add_bits(Bytes64 v, uint64_t bits) {
#if defined(__AVX512BW__)
  auto p = __m512i(v.part[0]);
  v.part[0] = Bytes64::SubVector(_mm512_mask_add_epi8(p, bits, p, _mm512_set1_epi8(1)));
  return v;
#else
  Bytes64 minus = spread(bits);
  for (int i = 0; i < Bytes64::parts; i++) v.part[i] -= minus.part[i];
  return v;
#endif
}

// Repeats a table of 16 bytes in each 16 bytes of a vector.
CC_HD Bytes64 table16(const uint8_t* table) {
  uint8_t t[64];
  for (int i = 0; i < 4; i++) __builtin_memcpy(t + 16 * i, table, 16);
  return Bytes64::load(t);
}

// table[v[i] & 15].
CC_HD Bytes64 lookup16(Bytes64 table, Bytes64 v) {
  v = v & 15;
  for (int i = 0; i < Bytes64::parts; i++) {
    Bytes64::SubVector &p = v.part[i], t = table.part[i];
#if defined(__AVX512BW__)
    p = Bytes64::SubVector(_mm512_shuffle_epi8(__m512i(t), __m512i(p)));
#elif defined(__AVX2__)
    p = Bytes64::SubVector(_mm256_shuffle_epi8(__m256i(t), __m256i(p)));
#else
    uint8_t at[16], entry[16];
    store(at, p);
    store(entry, t);
    for (int k = 0; k < 16; k++) at[k] = entry[at[k]];
    p = load<Bytes64::SubVector>(at);
#endif
  }
  return v;
}

// The even bytes of two vectors, and the odd ones, in order.
CC_HD void unzip(Bytes64 a, Bytes64 b, Bytes64& even, Bytes64& odd) {
  using SubVector = Bytes64::SubVector;
  using Words = vec<uint16_t, vector_nbytes / 2>;
  auto pack = [](Words x, Words y) {
#if defined(__AVX512BW__)
    const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    return SubVector(
        _mm512_maskz_permutexvar_epi64(0xff, order, _mm512_packus_epi16(__m512i(x), __m512i(y))));
#elif defined(__AVX2__)
    return SubVector(_mm256_permute4x64_epi64(_mm256_packus_epi16(__m256i(x), __m256i(y)), 0xd8));
#elif defined(__SSE2__)
    return SubVector(_mm_packus_epi16(__m128i(x), __m128i(y)));
#else
    return __builtin_shufflevector(SubVector(x), SubVector(y), 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24,
                                   26, 28, 30);
#endif
  };
  constexpr int n = Bytes64::parts;
  for (int i = 0; i < n; i++) {
    auto x = Words(2 * i < n ? a.part[2 * i % n] : b.part[2 * i % n]);
    auto y = Words(2 * i + 1 < n ? a.part[(2 * i + 1) % n] : b.part[(2 * i + 1) % n]);
    even.part[i] = pack(x & 255, y & 255);
    odd.part[i] = pack(x >> 8, y >> 8);
  }
}

// The inverse.
CC_HD void zip(Bytes64 even, Bytes64 odd, Bytes64& a, Bytes64& b) {
  using SubVector = Bytes64::SubVector;
  constexpr int n = Bytes64::parts;
  for (int i = 0; i < n; i++) {
    SubVector x = even.part[i], y = odd.part[i];
#if defined(__AVX512BW__)
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    __m512i p = _mm512_maskz_permutexvar_epi64(0xff, order, __m512i(x));
    __m512i q = _mm512_maskz_permutexvar_epi64(0xff, order, __m512i(y));
    auto low = SubVector(_mm512_unpacklo_epi8(p, q)), high = SubVector(_mm512_unpackhi_epi8(p, q));
#elif defined(__AVX2__)
    __m256i p = _mm256_permute4x64_epi64(__m256i(x), 0xd8), q = _mm256_permute4x64_epi64(__m256i(y), 0xd8);
    auto low = SubVector(_mm256_unpacklo_epi8(p, q)), high = SubVector(_mm256_unpackhi_epi8(p, q));
#else
    SubVector low = __builtin_shufflevector(x, y, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    SubVector high =
        __builtin_shufflevector(x, y, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#endif
    (2 * i < n ? a : b).part[2 * i % n] = low;
    (2 * i + 1 < n ? a : b).part[(2 * i + 1) % n] = high;
  }
}

// 64 values of k bytes each, in k vectors, to k vectors with one byte of each value; and the inverse.
template <int k, int stride = 1>
CC_HD void to_planes(const Bytes64* v, Bytes64* plane) {
  if constexpr (k == 1) {
    plane[0] = v[0];
  } else {
    Bytes64 even[k / 2], odd[k / 2];
    for (int i = 0; i < k / 2; i++) unzip(v[2 * i], v[2 * i + 1], even[i], odd[i]);
    to_planes<k / 2, 2 * stride>(even, plane);
    to_planes<k / 2, 2 * stride>(odd, plane + stride);
  }
}
template <int k, int stride = 1>
CC_HD void from_planes(const Bytes64* plane, Bytes64* v) {
  if constexpr (k == 1) {
    v[0] = plane[0];
  } else {
    Bytes64 even[k / 2], odd[k / 2];
    from_planes<k / 2, 2 * stride>(plane, even);
    from_planes<k / 2, 2 * stride>(plane + stride, odd);
    for (int i = 0; i < k / 2; i++) zip(even[i], odd[i], v[2 * i], v[2 * i + 1]);
  }
}

}  // namespace CC_LEVEL
}  // namespace compcoll
