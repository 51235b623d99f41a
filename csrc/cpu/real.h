// Float types as vectors: every codec that quantises reads elements as doubles, so that results are the same
// on each machine, subnormals included, and rounds once when it writes them.
#pragma once
#if defined(__SSE2__)
#include <immintrin.h>
#endif
#if !defined(__clang__)  // g++ 12 warns about its own header
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include "../accumulate.h"
#include "../bits.h"

namespace compcoll {
namespace CC_LEVEL {

constexpr int reals = vector_nbytes / 8;  // elements at a time
using Doubles = vec<double, reals>;
using Floats = vec<float, reals>;

using Integers = vec<int32_t, reals>;

// Conversions between registers of different widths, which g++ would otherwise split into halves.
#if defined(__AVX512F__)
inline Doubles to_doubles(Floats v) { return (Doubles)_mm512_cvtps_pd((__m256)v); }
inline Doubles to_doubles(Integers v) { return (Doubles)_mm512_cvtepi32_pd((__m256i)v); }
inline Floats to_floats(Doubles v) { return (Floats)_mm512_cvtpd_ps((__m512d)v); }
inline Integers to_integers(Doubles v) { return (Integers)_mm512_cvtpd_epi32((__m512d)v); }
#elif defined(__AVX2__)
inline Doubles to_doubles(Floats v) { return (Doubles)_mm256_cvtps_pd((__m128)v); }
inline Doubles to_doubles(Integers v) { return (Doubles)_mm256_cvtepi32_pd((__m128i)v); }
inline Floats to_floats(Doubles v) { return (Floats)_mm256_cvtpd_ps((__m256d)v); }
inline Integers to_integers(Doubles v) { return (Integers)_mm256_cvtpd_epi32((__m256d)v); }
#else
inline Doubles to_doubles(Floats v) { return __builtin_convertvector(v, Doubles); }
inline Doubles to_doubles(Integers v) { return __builtin_convertvector(v, Doubles); }
inline Floats to_floats(Doubles v) { return __builtin_convertvector(v, Floats); }
inline Integers to_integers(Doubles v) {  // to nearest even, for magnitudes below 2^31
  return __builtin_convertvector((vec<uint64_t, reals>)(v + 0x1.8p52), Integers);
}
#endif

// Two vectors of floats in one register, and its halves.
using Pair = vec<float, 2 * reals>;
using PairWords = vec<uint32_t, 2 * reals>;

#if defined(__AVX512F__)
inline Pair join(Floats a, Floats b) {
  return (Pair)_mm512_insertf64x4(_mm512_castpd256_pd512((__m256d)a), (__m256d)b, 1);
}
inline Floats half(Pair v, int i) {
  return i ? (Floats)_mm512_extractf64x4_pd((__m512d)v, 1) : (Floats)_mm512_castps512_ps256((__m512)v);
}
#elif defined(__AVX2__)
inline Pair join(Floats a, Floats b) { return (Pair)_mm256_set_m128((__m128)b, (__m128)a); }
inline Floats half(Pair v, int i) {
  return i ? (Floats)_mm256_extractf128_ps((__m256)v, 1) : (Floats)_mm256_castps256_ps128((__m256)v);
}
#else
inline Pair join(Floats a, Floats b) { return Pair{a[0], a[1], b[0], b[1]}; }
inline Floats half(Pair v, int i) { return Floats{v[2 * i], v[2 * i + 1]}; }
#endif

struct Float16 { uint16_t bits; };
struct Bfloat16 { uint16_t bits; };

// Per type T: `value`, the vector for sums and comparisons; `real`, its element; `unit`, the largest relative
// error of rounding to T; `tiny`, the largest absolute one below the normal range; and `most`, the largest
// finite value. Stored values have been rounded before.
template <class T> struct Real;

template <> struct Real<double> {
  using real = double;
  using value = Doubles;
  static constexpr double unit = 0x1p-53, tiny = 0x1p-1074;  // half of it is not representable
  static constexpr double most = 0x1.fffffffffffffp+1023;
  static value load(const void* p) { return compcoll::CC_LEVEL::load<value>(p); }
  static Doubles widen(value v) { return v; }
  static value round(Doubles v) { return v; }
  static void store(void* p, value v) { compcoll::CC_LEVEL::store(p, v); }
};

template <> struct Real<float> {
  using real = float;
  using value = Floats;
  static constexpr double unit = 0x1p-24, tiny = 0x1p-150, most = 0x1.fffffep+127;
  static value load(const void* p) { return compcoll::CC_LEVEL::load<value>(p); }
  static Doubles widen(value v) { return to_doubles(v); }
  static value round(Doubles v) { return to_floats(v); }
  static void store(void* p, value v) { compcoll::CC_LEVEL::store(p, v); }
};

// 16-bit floats are floats in registers; rounding goes through float, so it is not always to the nearest.
// Functions named pair handle two vectors at once.
template <class T> struct Narrow {
  using real = float;
  using value = Floats;
  static Doubles widen(value v) { return to_doubles(v); }
  static Pair load_pair(const void* p) {
    return join(Real<T>::load(p), Real<T>::load(static_cast<const char*>(p) + reals * sizeof(T)));
  }
  static void store_pair(void* p, Pair v) {
    Real<T>::store(p, half(v, 0));
    Real<T>::store(static_cast<char*>(p) + reals * sizeof(T), half(v, 1));
  }
};

template <> struct Real<Bfloat16> : Narrow<Bfloat16> {
  static constexpr double unit = 0x1p-8, tiny = 0x1p-134, most = 0x1.fep+127;
  static constexpr int16_t infinity = 0x7f80;
  template <class W, class V>
  static V rounded(V v) {
    W u = bit_cast<W>(v);
    u = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u;
    return bit_cast<V>(u);
  }
  using Words = vec<uint32_t, reals>;
  static value round(Doubles v) { return rounded<Words>(to_floats(v)); }
  static Pair round_pair(Pair v) { return rounded<PairWords>(v); }
#if defined(__AVX512F__)
  static value load(const void* p) {
    return (value)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16);
  }
  static void store(void* p, value v) {
    _mm_storeu_si128((__m128i*)p, _mm256_cvtepi32_epi16(_mm256_srli_epi32((__m256i)v, 16)));
  }
  static Pair load_pair(const void* p) {
    return (Pair)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16);
  }
  static void store_pair(void* p, Pair v) {
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32((__m512i)v, 16)));
  }
#elif defined(__AVX2__)
  static value load(const void* p) {
    return (value)_mm_slli_epi32(_mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i*)p)), 16);
  }
  static void store(void* p, value v) {
    __m128i u = _mm_srli_epi32((__m128i)v, 16);
    _mm_storel_epi64((__m128i*)p, _mm_packus_epi32(u, u));
  }
#else
  using Halves = vec<uint16_t, reals>;
  static value load(const void* p) {
    Words u = __builtin_convertvector(compcoll::CC_LEVEL::load<Halves>(p), Words) << 16;
    return bit_cast<value>(u);
  }
  static void store(void* p, value v) {
    compcoll::CC_LEVEL::store(p, __builtin_convertvector(bit_cast<Words>(v) >> 16, Halves));
  }
#endif
};

template <> struct Real<Float16> : Narrow<Float16> {
  static constexpr double unit = 0x1p-11, tiny = 0x1p-25, most = 65504;
  static constexpr int16_t infinity = 0x7c00;
#if defined(__AVX512F__)
  static value load(const void* p) { return (value)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
  static void store(void* p, value v) { _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph((__m256)v, 0)); }
  static value round(Doubles v) { return (value)_mm256_cvtph_ps(_mm256_cvtps_ph((__m256)to_floats(v), 0)); }
  static Pair load_pair(const void* p) {
    return (Pair)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
  }
  static void store_pair(void* p, Pair v) { _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph((__m512)v, 0)); }
  static Pair round_pair(Pair v) { return (Pair)_mm512_cvtph_ps(_mm512_cvtps_ph((__m512)v, 0)); }
#elif defined(__F16C__)
  static value load(const void* p) { return (value)_mm_cvtph_ps(_mm_loadl_epi64((const __m128i*)p)); }
  static void store(void* p, value v) { _mm_storel_epi64((__m128i*)p, _mm_cvtps_ph((__m128)v, 0)); }
  static value round(Doubles v) { return (value)_mm_cvtph_ps(_mm_cvtps_ph((__m128)to_floats(v), 0)); }
  static Pair round_pair(Pair v) { return (Pair)_mm256_cvtph_ps(_mm256_cvtps_ph((__m256)v, 0)); }
#else
  static value load(const void* p) {
    value v;
    for (int i = 0; i < reals; i++)
      v[i] = float16_to_float(compcoll::CC_LEVEL::load<uint16_t>((const char*)p + 2 * i));
    return v;
  }
  static void store(void* p, value v) {
    for (int i = 0; i < reals; i++) compcoll::CC_LEVEL::store((char*)p + 2 * i, float_to_float16(v[i]));
  }
  static value round(Doubles v) { return half(round_pair(join(to_floats(v), Floats{})), 0); }
  static Pair round_pair(Pair v) {
    for (int i = 0; i < 2 * reals; i++) v[i] = float16_to_float(float_to_float16(v[i]));
    return v;
  }
#endif
};

// Writes the i-th vector of values of a row, or adds it to the accumulator.
template <class T, bool adding>
inline void deliver(char* row, int i, typename Real<T>::value v) {
  using V = typename Real<T>::value;
  if constexpr (adding) store(row + i * sizeof(V), load<V>(row + i * sizeof(V)) + v);
  else Real<T>::store(row + i * reals * sizeof(T), v);
}

// Calls f.template run<T>(n) with the type of a dtype's real numbers, and their number.
template <class F>
inline int64_t with_real(const Args* args, const F& f) {
  switch (args->dtype) {
    case FLOAT16: return f.template run<Float16>(args->size());
    case BFLOAT16: return f.template run<Bfloat16>(args->size());
    case FLOAT32: return f.template run<float>(args->size());
    case FLOAT64: return f.template run<double>(args->size());
    case COMPLEX64: return f.template run<float>(2 * args->size());
    case COMPLEX128: return f.template run<double>(2 * args->size());
    default: return UNSUPPORTED;
  }
}

// True if acc_dtype is the accumulator type of the values.
inline bool accumulates(const Args* args) {
  bool narrow = args->dtype == FLOAT16 || args->dtype == BFLOAT16;
  return args->acc_dtype == (narrow ? uint32_t(FLOAT32) : args->dtype);
}

}  // namespace CC_LEVEL
}  // namespace compcoll
