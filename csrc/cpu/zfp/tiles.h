// N consecutive ZFP blocks of an array in parallel: value i of block b is lane b of a[i].
#pragma once
#include <cstring>
#include <utility>

#include "../../abi.h"
#include "../../zfp.h"

namespace compcoll {
namespace CC_LEVEL {
namespace zfp {

// The array as values along x, y, z (fastest first), and its blocks in stream order.
struct Grid {
  uint64_t n[3], blocks[3];

  Grid(const Args& args, uint64_t values_per_element) {
    for (uint32_t i = 0; i < 3; i++) {
      n[i] = i < args.ndim ? args.shape[args.ndim - 1 - i] : 1;
      if (i == 0) n[i] *= values_per_element;
      blocks[i] = (n[i] + 3) / 4;
    }
  }
  uint64_t count() const { return blocks[0] * blocks[1] * blocks[2]; }
};

struct Cursor {
  uint64_t b[3] = {0, 0, 0};

  void advance(const Grid& grid, uint64_t count) {
    b[0] += count;
    while (b[0] >= grid.blocks[0]) {
      b[0] -= grid.blocks[0];
      if (++b[1] == grid.blocks[1]) b[1] = 0, b[2]++;
    }
  }
};

template <class L, class Source, size_t... I>
inline L shuffle(L a, L b, Source source, std::index_sequence<I...>) {
  using Mask = typename LaneTypes<L>::Int;
  constexpr Mask mask = {typename Format<typename lanes<L>::word>::Int(Source()(I))...};
  return __builtin_shuffle(a, b, mask);
}

// Element i of the result is element source(i) of the concatenation of a and b.
template <class L, class Source>
inline L shuffle(L a, L b, Source source) {
  return shuffle(a, b, source, std::make_index_sequence<lanes<L>::n>());
}

template <int N, int First>
struct Strided {  // every fourth starting at First, then every fourth starting at First + 1
  constexpr int operator()(int i) const { return i < N / 2 ? 4 * i + First : 4 * (i - N / 2) + First + 1; }
};
template <int Step, int First>
struct Every {
  constexpr int operator()(int i) const { return Step * i + First; }
};
template <int N, int First>
struct Halves {
  constexpr int operator()(int i) const { return i < N / 2 ? First + i : First + N / 2 + i; }
};
template <int N, int First>
struct Zip {  // one of each in turn
  constexpr int operator()(int i) const { return i / 2 + i % 2 * N + First; }
};
template <int N, int First>
struct ZipPairs {
  constexpr int operator()(int i) const {
    int j = i + First, pair = j / 4 * 2, c = j % 4;
    return c < 2 ? pair + c : N + pair + c - 2;
  }
};

// 4 N consecutive values to four vectors of N: one row of N blocks.
template <class L>
inline void deinterleave(L* a) {
  constexpr int N = lanes<L>::n;
  L t0 = shuffle(a[0], a[1], Strided<N, 0>()), t1 = shuffle(a[2], a[3], Strided<N, 0>());
  L t2 = shuffle(a[0], a[1], Strided<N, 2>()), t3 = shuffle(a[2], a[3], Strided<N, 2>());
  a[0] = shuffle(t0, t1, Halves<N, 0>()), a[1] = shuffle(t0, t1, Halves<N, N / 2>());
  a[2] = shuffle(t2, t3, Halves<N, 0>()), a[3] = shuffle(t2, t3, Halves<N, N / 2>());
}

template <class L>
inline void interleave(L* a) {
  constexpr int N = lanes<L>::n;
  L t0 = shuffle(a[0], a[1], Zip<N, 0>()), t1 = shuffle(a[2], a[3], Zip<N, 0>());
  L t2 = shuffle(a[0], a[1], Zip<N, N / 2>()), t3 = shuffle(a[2], a[3], Zip<N, N / 2>());
  a[0] = shuffle(t0, t1, ZipPairs<N, 0>()), a[1] = shuffle(t0, t1, ZipPairs<N, N>());
  a[2] = shuffle(t2, t3, ZipPairs<N, 0>()), a[3] = shuffle(t2, t3, ZipPairs<N, N>());
}

// Position of N blocks in an array of D dimensions.
template <class W, int D>
struct Tiles {
  static constexpr int N = vector_nbytes / sizeof(W), rows = 1 << 2 * (D - 1);
  using L = vec<W, N>;

  const Grid& grid;
  const uint32_t value_nbytes;

  // True if these are N whole blocks in one row of blocks.
  bool whole(const Cursor& at, int count) const {
    return count == N && 4 * (at.b[0] + N) <= grid.n[0] && (D < 2 || 4 * at.b[1] + 4 <= grid.n[1]) &&
           (D < 3 || 4 * at.b[2] + 4 <= grid.n[2]);
  }

  // Index of the first value of a row of 4; y and z within the array.
  uint64_t row_begin(const Cursor& at, uint64_t y, uint64_t z) const {
    return (z * grid.n[1] + y) * grid.n[0] + 4 * at.b[0];
  }
};

}  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
