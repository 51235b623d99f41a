// The lane type: block code is a template over `L`, which is a plain integer (one CUDA thread, or one block
// at a time on the CPU) or a GCC vector of them (one block in each lane). Operators come from the language;
// other operations are here.
#pragma once
#include "config.h"

namespace compcoll {
namespace CC_LEVEL {

#if !defined(__CUDACC__)
// Widest vector register of the level, in bytes.
#if defined(__AVX512BW__)
constexpr int vector_nbytes = 64;
#elif defined(__AVX2__)
constexpr int vector_nbytes = 32;
#else
constexpr int vector_nbytes = 16;
#endif

template <class T, int N>
struct vector_of {
  typedef T type __attribute__((vector_size(sizeof(T) * N)));
};
template <class T, int N>
using vec = typename vector_of<T, N>::type;
#else
template <class T, int N>
using vec = T;  // a thread has one lane
#endif

template <class L>
struct lanes {  // scalar: one lane
  using word = L;
  static constexpr int n = 1;
};
#if !defined(__CUDACC__)
template <class T, int N>
struct lanes_of_vector {
  using word = T;
  static constexpr int n = N;
};
template <> struct lanes<vec<uint32_t, 4>> : lanes_of_vector<uint32_t, 4> {};
template <> struct lanes<vec<uint32_t, 8>> : lanes_of_vector<uint32_t, 8> {};
template <> struct lanes<vec<uint32_t, 16>> : lanes_of_vector<uint32_t, 16> {};
template <> struct lanes<vec<uint64_t, 2>> : lanes_of_vector<uint64_t, 2> {};
template <> struct lanes<vec<uint64_t, 4>> : lanes_of_vector<uint64_t, 4> {};
template <> struct lanes<vec<uint64_t, 8>> : lanes_of_vector<uint64_t, 8> {};

template <class V>
CC_HD auto lane(const V& v, int i) {
  return v[i];
}
template <class V>
CC_HD V load(const void* p) {  // unaligned
  V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
template <class V>
CC_HD void store(void* p, V v) {  // unaligned
  __builtin_memcpy(p, &v, sizeof v);
}
#else
template <class L>
CC_HD L lane(L v, int) {
  return v;
}
#endif

}  // namespace CC_LEVEL
}  // namespace compcoll
