// Permutations of vector lanes, written once for every vector width: if a permutation is known at compile
// time, the compiler finds the instructions.
#pragma once
#include <utility>

#include "../lanes.h"

namespace compcoll {
namespace CC_LEVEL {

// result[i] = concat(a, b)[Index::at(i)].
template <class Index, class V, size_t... i>
CC_HD V permute_as(V a, V b, std::index_sequence<i...>) {
  return __builtin_shufflevector(a, b, Index::at(i)...);
}
template <class Index, class V>
CC_HD V permute(V a, V b) {
  return permute_as<Index>(a, b, std::make_index_sequence<lanes<V>::n>{});
}

// The lanes of concat(before, v) that end k lanes before its end.
template <int n, int k>
struct ShiftUp {
  static constexpr int at(int i) { return n - k + i; }
};
template <int k, class V>
CC_HD V shift_up(V before, V v) {
  return permute<ShiftUp<lanes<V>::n, k>>(before, v);
}

template <int lane>
struct Broadcast {
  static constexpr int at(int) { return lane; }
};
template <class V>
CC_HD V broadcast_last(V v) {
  return permute<Broadcast<lanes<V>::n - 1>>(v, v);
}

// result[i] = v[index[i]], with an index known only at run time.
template <class V>
CC_HD V permute_by(V v, V index) {
#if defined(__clang__)
  V result;
  for (int i = 0; i < lanes<V>::n; i++) result[i] = v[index[i] % lanes<V>::n];
  return result;
#else
  return __builtin_shuffle(v, index);
#endif
}

// Inclusive prefix sum over the lanes.
template <int k = 1, class V>
CC_HD V prefix_sum(V v) {
  if constexpr (k < lanes<V>::n) {
    v += shift_up<k>(V{}, v);
    v = prefix_sum<2 * k>(v);
  }
  return v;
}

}  // namespace CC_LEVEL
}  // namespace compcoll
