// An array's values to lanes. Coders depend only on the word: they are compiled once for all types of a word.
#pragma once
#include "extent.h"
#include "pieces.h"
#include "tiles.h"
#include "transform.h"

namespace compcoll {
namespace CC_LEVEL {
namespace zfp {

template <class W, int D>
struct Source : Tiles<W, D> {
  using typename Tiles<W, D>::L;
  const uint8_t* const values;

  Source(const Grid& grid, uint32_t value_nbytes, const void* values)
      : Tiles<W, D>{grid, value_nbytes}, values(static_cast<const uint8_t*>(values)) {}

  // Loads `count` blocks to x, each value to the index that `kept` gives; returns the largest magnitudes.
  virtual L load(Cursor at, int count, L* x) const = 0;

  // Result of `judge` of extent.h for the element type.
  virtual int64_t judge(const Extent<L>& extent, double* bound) const = 0;
};

template <class E, int D>
class SourceOf final : public Source<typename E::Word, D> {
  using Base = Source<typename E::Word, D>;
  using W = typename E::Word;
  using L = typename Base::L;
  using Stored = typename E::Stored;
  using Base::N, Base::grid, Base::row_begin, Base::rows, Base::values;
  using Packed = vec<Stored, N>;

 public:
  SourceOf(const Grid& grid, const void* values) : Base(grid, sizeof(Stored), values) {}

  L load(Cursor at, int count, L* x) const override {
    if (!this->whole(at, count)) return load_partial(at, count, x);
    L magnitude = {};
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
      L v[4];
      load_row(values + sizeof(Stored) * row_begin(at, 4 * at.b[1] + r % 4, 4 * at.b[2] + r / 4), v);
      keep(r, v, x, magnitude);
    }
    return magnitude;
  }

  int64_t judge(const Extent<L>& extent, double* bound) const override {
    return zfp::judge<E, D>(extent, bound);
  }

 private:
  // In a separate function, because whole blocks would otherwise also reserve its registers and its copy.
  __attribute__((noinline)) L load_partial(Cursor at, int count, L* x) const {
    L magnitude = {};
#if defined(__AVX512BW__)
    if (grid.blocks[0] > 3) {
      Pieces<N> pieces(grid, at, count);
      for (int r = 0; r < rows; r++) {
        Packed packed[4];
        L v[4];
        pieces.load(values, r, packed);
        for (int i = 0; i < 4; i++) v[i] = E::template widen<L>(packed[i]);
        pieces.add_padding(v);
        deinterleave(v);
        keep(r, v, x, magnitude);
      }
      return magnitude;
    }
#endif
    alignas(64) Stored copy[rows][4 * N] = {};
    for (int lane = 0; lane < count; lane++, at.advance(grid, 1)) {
      uint64_t left[3];
      for (int i = 0; i < 3; i++) left[i] = grid.n[i] - 4 * at.b[i];
      for (int r = 0; r < rows; r++) {
        uint64_t y = 4 * at.b[1] + padded(left[1], r % 4), z = 4 * at.b[2] + padded(left[2], r / 4);
        const uint8_t* p = values + sizeof(Stored) * row_begin(at, y, z);
        Stored* to = copy[r] + 4 * lane;
        if (left[0] >= 4) memcpy(to, p, 4 * sizeof(Stored));
        else
          for (int i = 0; i < 4; i++) memcpy(to + i, p + sizeof(Stored) * padded(left[0], i), sizeof(Stored));
      }
    }
    for (int r = 0; r < rows; r++) {
      L v[4];
      load_row(copy[r], v);
      keep(r, v, x, magnitude);
    }
    return magnitude;
  }

  static void keep(int row, const L* v, L* x, L& magnitude) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
      L m = v[i] & W(~W(0) >> 1);
      magnitude = m > magnitude ? m : magnitude;
      x[kept<D>(4 * row + i)] = v[i];
    }
  }

  // The source of value i in a partial block that has `left` values along an axis: padding repeats values.
  static uint64_t padded(uint64_t left, uint64_t i) { return i < left ? i : i == 3 ? 0 : left - 1; }

  static void load_row(const void* src, L* a) {
    const char* p = static_cast<const char*>(src);
    for (int i = 0; i < 4; i++) {
      Packed packed = compcoll::CC_LEVEL::load<Packed>(p + i * sizeof(Packed));
      a[i] = E::template widen<L>(packed);
    }
    deinterleave(a);
  }
};

}  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
