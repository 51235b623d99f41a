// The element types of the ZFP codec: conversion of memory to lanes of float32 or float64 bits, and back.
// 16-bit floats are widened exactly, and rounded back to nearest even with saturation: never to infinity.
#pragma once
#include "../../abi.h"
#include "../../zfp.h"
#if defined(__AVX512BW__)
#include <immintrin.h>
#endif

namespace compcoll {
namespace CC_LEVEL {
namespace zfp {

template <class W>
struct Whole {
  using Word = W;
  using Stored = W;
  template <class L> static L widen(L v) { return v; }
  template <class L> static L narrow(L v) { return v; }
  static double rounding(double) { return 0; }
};
using Float32 = Whole<uint32_t>;
using Float64 = Whole<uint64_t>;

#if defined(__AVX512BW__)
// Limits magnitudes to `largest`, keeping signs.
inline __m512 saturate(__m512 v, float largest) {
  return _mm512_range_ps(v, _mm512_set1_ps(largest), 2);  // the smaller magnitude, with the first one's sign
}
#endif

struct Float16 {
  using Word = uint32_t;
  using Stored = uint16_t;

  template <class L>
  static L widen(vec<uint16_t, lanes<L>::n> v) {
    using Real = typename LaneTypes<L>::Real;
    L h = convert<L>(v), magnitude = h & 0x7fff, sign = (h ^ magnitude) << 16;
    L normal = (magnitude << 13) + (112u << 23);
    L subnormal = bits_as<L>(convert<Real>(typename LaneTypes<L>::Int(magnitude)) * 0x1p-24f);
    L finite = magnitude < 0x400 ? subnormal : normal;
    return sign | (magnitude < 0x7c00 ? finite : L{} + 0x7f800000u);
  }

  template <class L>
  static vec<uint16_t, lanes<L>::n> narrow(L v) {
#if defined(__AVX512BW__)
    constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return vec<uint16_t, 16>(_mm512_cvtps_ph(saturate(__m512(v), 65504), nearest));
#else
    using Real = typename LaneTypes<L>::Real;
    L magnitude = v & 0x7fffffff, sign = (v ^ magnitude) >> 16;
    L largest = L{} + 0x477fe000u;
    magnitude = magnitude > largest ? largest : magnitude;
    L normal = ((magnitude + 0xfff + ((magnitude >> 13) & 1)) >> 13) - (112u << 10);
    // At 1/2 the unit in the last place is the smallest float16, so this addition rounds correctly.
    L subnormal = bits_as<L>(bits_as<Real>(magnitude) + 0.5f) - 0x3f000000u;
    return convert<vec<uint16_t, lanes<L>::n>>(sign | (magnitude < 0x38800000u ? subnormal : normal));
#endif
  }

  // Half a unit in the last place of values below 2^q.
  static double rounding(double magnitude) {
    int q;
    __builtin_frexp(magnitude, &q);
    return __builtin_ldexp(1, (q < -13 ? -13 : q) - 12);
  }
};

struct BFloat16 {
  using Word = uint32_t;
  using Stored = uint16_t;

#if defined(__AVX512BW__)
  // Rounded values in the upper halves of words.
  template <class L>
  static L rounded(L v) {
    v = L(saturate(__m512(v), 0x1.fep127f));
    return v + 0x7fff + ((v >> 16) & 1);
  }

  // Two values in the halves of a word.
  template <class L>
  static L narrow_pairs(L low, L high) {
    return (rounded(low) >> 16) | (rounded(high) & 0xffff0000);
  }
#endif

  template <class L>
  static L widen(vec<uint16_t, lanes<L>::n> v) {
    return convert<L>(v) << 16;
  }

  template <class L>
  static vec<uint16_t, lanes<L>::n> narrow(L v) {
#if defined(__AVX512BW__)
    return convert<vec<uint16_t, 16>>(rounded(v) >> 16);
#else
    L magnitude = v & 0x7fffffff, sign = (v ^ magnitude) >> 16;
    L largest = L{} + 0x7f7f0000u;
    magnitude = magnitude > largest ? largest : magnitude;
    return convert<vec<uint16_t, lanes<L>::n>>(sign | (magnitude + 0x7fff + ((magnitude >> 16) & 1)) >> 16);
#endif
  }

  static double rounding(double magnitude) {
    int q;
    __builtin_frexp(magnitude, &q);
    return __builtin_ldexp(1, (q < -125 ? -125 : q) - 9);
  }
};

}  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
