// N consecutive ZFP blocks of an array, side by side: value i of block b is lane b of a[i].
#pragma once
#include <cstring>
#include <utility>

#include "../prefetch.h"
#include "elements.h"
#include "pieces.h"

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
  using Mask = typename Lane<L>::Int;
  constexpr Mask mask = {typename Format<typename lanes<L>::word>::Int(Source()(I))...};
  return __builtin_shuffle(a, b, mask);
}

// Element i of the result is element source(i) of a and b in a row.
template <class L, class Source>
inline L shuffle(L a, L b, Source source) {
  return shuffle(a, b, source, std::make_index_sequence<lanes<L>::n>());
}

template <int N, int First>
struct Strided {  // every fourth from First on, then every fourth from First + 1 on
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
struct Zip {  // one from each in turn
  constexpr int operator()(int i) const { return i / 2 + i % 2 * N + First; }
};
template <int N, int First>
struct ZipPairs {
  constexpr int operator()(int i) const {
    int j = i + First, pair = j / 4 * 2, c = j % 4;
    return c < 2 ? pair + c : N + pair + c - 2;
  }
};

// 4 N values in a row to four vectors of N: one row of N blocks.
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

// Half h of the lanes of v, as 64-bit words.
template <class L, class Narrow>
inline L widen_half(const Narrow& v, int h) {
  vec<uint32_t, lanes<L>::n> half;
  __builtin_memcpy(&half, reinterpret_cast<const uint32_t*>(&v) + h * lanes<L>::n, sizeof half);
  return convert<L>(half);
}

// Loads and stores of N blocks of E elements in D dimensions. Accumulate: adds Words at dst instead.
template <class E, int D, bool Accumulate = false>
struct Tiles {
  using W = typename E::Word;
  using Stored = typename E::Stored;
  using Target = std::conditional_t<Accumulate, W, Stored>;
  static constexpr bool accumulates = Accumulate;
  static constexpr int N = vector_nbytes / sizeof(W), rows = 1 << 2 * (D - 1);
  using L = vec<W, N>;
  using Real = typename Lane<L>::Real;
  using Packed = vec<Stored, N>;

  const Grid& grid;

  // Whether these are Count blocks of one row of blocks, none of them partial.
  template <int Count = N>
  bool whole(const Cursor& at, int count) const {
    return count == Count && 4 * (at.b[0] + Count) <= grid.n[0] && (D < 2 || 4 * at.b[1] + 4 <= grid.n[1]) &&
           (D < 3 || 4 * at.b[2] + 4 <= grid.n[2]);
  }

  // Index of the first value of a row of 4; y and z within the array.
  uint64_t row_begin(const Cursor& at, uint64_t y, uint64_t z) const {
    return (z * grid.n[1] + y) * grid.n[0] + 4 * at.b[0];
  }

  // The source of value i of a partial block that has `left` values along an axis: padding repeats.
  static uint64_t padded(uint64_t left, uint64_t i) { return i < left ? i : i == 3 ? 0 : left - 1; }

  // Calls use(r, v) with the 4 vectors of each row r of the blocks.
  template <class Use>
  void load(Cursor at, int count, const uint8_t* src, Use use) const {
    if (whole(at, count)) {
#pragma GCC unroll 16
      for (int r = 0; r < rows; r++) {
        L v[4];
        load_row(src + sizeof(Stored) * row_begin(at, 4 * at.b[1] + r % 4, 4 * at.b[2] + r / 4), v);
        use(r, v);
      }
      return;
    }
#if defined(__AVX512BW__)
    if (grid.blocks[0] > 3) {
      Pieces<N> pieces(grid, at, count);
      for (int r = 0; r < rows; r++) {
        Packed packed[4];
        L v[4];
        pieces.load(src, r, packed);
        for (int i = 0; i < 4; i++) v[i] = E::template widen<L>(packed[i]);
        pieces.add_padding(v);
        deinterleave(v);
        use(r, v);
      }
      return;
    }
#endif
    alignas(64) Stored values[rows][4 * N] = {};
    for (int lane = 0; lane < count; lane++, at.advance(grid, 1)) {
      uint64_t left[3];
      for (int i = 0; i < 3; i++) left[i] = grid.n[i] - 4 * at.b[i];
      for (int r = 0; r < rows; r++) {
        uint64_t y = 4 * at.b[1] + padded(left[1], r % 4), z = 4 * at.b[2] + padded(left[2], r / 4);
        const uint8_t* p = src + sizeof(Stored) * row_begin(at, y, z);
        Stored* to = values[r] + 4 * lane;
        if (left[0] >= 4) memcpy(to, p, 4 * sizeof(Stored));
        else
          for (int i = 0; i < 4; i++) memcpy(to + i, p + sizeof(Stored) * padded(left[0], i), sizeof(Stored));
      }
    }
    for (int r = 0; r < rows; r++) {
      L v[4];
      load_row(values[r], v);
      use(r, v);
    }
  }

  // Destinations of the next blocks, as a function that prefetches one of their rows.
#if defined(__AVX512BW__)
  ExpectedRows expected(Cursor at, uint64_t count, const uint8_t* dst) const {
    constexpr uint64_t size = sizeof(Target);
    ExpectedRows result(rows, size * grid.n[0], size * grid.n[0] * grid.n[1]);
    while (count && !result.full()) {
      uint64_t in_row = grid.blocks[0] - at.b[0], some = count < in_row ? count : in_row;
      uint64_t begin = size * row_begin(at, 4 * at.b[1], 4 * at.b[2]);
      result.add(reinterpret_cast<uintptr_t>(dst) + begin, 4 * size * some);
      at.advance(grid, some);
      count -= some;
    }
    return result;
  }
#else
  static auto expected(const Cursor&, uint64_t, const uint8_t*) {
    return [](int) {};
  }
#endif

  // Rows of whole blocks, from a row's number on.
  void store_rows(const Cursor& at, int first, int n, L* a, uint8_t* dst) const {
    for (int r = first; r < first + n; r++, a += 4)
      store_row(a, dst + sizeof(Target) * row_begin(at, 4 * at.b[1] + r % 4, 4 * at.b[2] + r / 4));
  }

  void store(const Cursor& at, int count, L* a, uint8_t* dst) const {
    if (whole(at, count)) store_rows(at, 0, rows, a, dst);
    else store_partial(at, count, a, dst);
  }

  void store_partial(Cursor at, int count, L* a, uint8_t* dst) const {
#if defined(__AVX512BW__)
    if (grid.blocks[0] > 1) {
      const Pieces<N> pieces(grid, at, count);
      for (int z = 0; z < (rows + 3) / 4; z++) store_pieces(pieces, z, a + 16 * z, dst);
      return;
    }
#endif
    alignas(64) Target values[rows][4 * N] = {};
    for_partial(at, count, [&](int r, int lane, uint64_t begin, size_t n) {
      if (Accumulate) memcpy(values[r] + 4 * lane, dst + sizeof(Target) * begin, n * sizeof(Target));
    });
    for (int r = 0; r < rows; r++) store_row(a + 4 * r, values[r]);
    for_partial(at, count, [&](int r, int lane, uint64_t begin, size_t n) {
      memcpy(dst + sizeof(Target) * begin, values[r] + 4 * lane, n * sizeof(Target));
    });
  }

#if defined(__AVX512BW__)
  // The rows of one z.
  static void store_pieces(const Pieces<N>& pieces, int z, L* a, uint8_t* dst) {
    constexpr int n = rows < 4 ? rows : 4;
    for (int r = 0; r < n; r++) interleave(a + 4 * r);
    if constexpr (Accumulate) {
      for (int i = 0; i < 4 * n; i++) a[i] = E::template widen<L>(E::narrow(a[i]));
      pieces.template store<true>(dst, z, a);
    } else {
      Packed packed[4 * n];
      for (int i = 0; i < 4 * n; i++) packed[i] = E::narrow(a[i]);
      pieces.template store<false>(dst, z, packed);
    }
  }
#endif

  // N values in a row.
  static void store_vector(L v, void* dst) {
    Packed packed = E::narrow(v);
    if constexpr (Accumulate) {
      Real sum = compcoll::CC_LEVEL::load<Real>(dst) + bits_as<Real>(E::template widen<L>(packed));
      compcoll::CC_LEVEL::store(dst, sum);
    } else {
      compcoll::CC_LEVEL::store(dst, packed);
    }
  }

 private:
  template <class Visit>
  void for_partial(Cursor at, int count, Visit visit) const {
    for (int lane = 0; lane < count; lane++, at.advance(grid, 1))
      for (int r = 0; r < rows; r++) {
        uint64_t y = 4 * at.b[1] + r % 4, z = 4 * at.b[2] + r / 4, left = grid.n[0] - 4 * at.b[0];
        if (y < grid.n[1] && z < grid.n[2]) visit(r, lane, row_begin(at, y, z), left < 4 ? left : 4);
      }
  }

  static void load_row(const void* src, L* a) {
    const char* p = static_cast<const char*>(src);
    for (int i = 0; i < 4; i++) {
      Packed packed = compcoll::CC_LEVEL::load<Packed>(p + i * sizeof(Packed));
      a[i] = E::template widen<L>(packed);
    }
    deinterleave(a);
  }

  static void store_row(L* a, void* dst) {
#if defined(__AVX512BW__)
    if constexpr (std::is_same_v<E, BFloat16> && !Accumulate) {  // half as many pairs have to be moved
      L low = E::narrow_pairs(a[0], a[1]), high = E::narrow_pairs(a[2], a[3]);
      compcoll::CC_LEVEL::store(dst, shuffle(low, high, Zip<N, 0>()));
      compcoll::CC_LEVEL::store(static_cast<char*>(dst) + sizeof(L), shuffle(low, high, Zip<N, N / 2>()));
      return;
    }
#endif
    interleave(a);
    for (int i = 0; i < 4; i++) store_vector(a[i], static_cast<char*>(dst) + i * N * sizeof(Target));
  }
};

}  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
