// Lanes to an array's values: the inverse of source.h.
#pragma once
#include <type_traits>

#include "../prefetch.h"
#include "elements.h"
#include "pieces.h"
#include "tiles.h"

namespace compcoll {
namespace CC_LEVEL {
namespace zfp {

template <class W, int D>
struct Target : Tiles<W, D> {
  using typename Tiles<W, D>::L;
  using Tiles<W, D>::N, Tiles<W, D>::rows, Tiles<W, D>::grid, Tiles<W, D>::row_begin;
  uint8_t* const values;

  Target(const Grid& grid, uint32_t value_nbytes, void* values)
      : Tiles<W, D>{grid, value_nbytes}, values(static_cast<uint8_t*>(values)) {}

  // Stores the rows of one z of whole blocks.
  virtual void store_rows(const Cursor& at, int z, L* a) const = 0;
#if defined(__AVX512BW__)
  virtual void store_pieces(const Pieces<N>& pieces, int z, L* a) const = 0;
#endif
  // Stores all rows of any blocks.
  virtual void store_partial(Cursor at, int count, L* a) const = 0;

  // Destinations of the next blocks, as a function that prefetches one of their rows.
#if defined(__AVX512BW__)
  ExpectedRows expected(Cursor at, uint64_t count) const {
    const uint64_t size = this->value_nbytes;
    ExpectedRows result(rows, size * grid.n[0], size * grid.n[0] * grid.n[1]);
    while (count && !result.full()) {
      uint64_t in_row = grid.blocks[0] - at.b[0], some = count < in_row ? count : in_row;
      uint64_t begin = size * row_begin(at, 4 * at.b[1], 4 * at.b[2]);
      result.add(reinterpret_cast<uintptr_t>(values) + begin, 4 * size * some);
      at.advance(grid, some);
      count -= some;
    }
    return result;
  }
#else
  static auto expected(const Cursor&, uint64_t) {
    return [](int) {};
  }
#endif
};

// Accumulate: adds words to those at `values`.
template <class E, int D, bool Accumulate>
class TargetOf final : public Target<typename E::Word, D> {
  using Base = Target<typename E::Word, D>;
  using L = typename Base::L;
  using Base::N, Base::grid, Base::row_begin, Base::rows, Base::values;
  using Value = std::conditional_t<Accumulate, typename E::Word, typename E::Stored>;
  using Packed = vec<typename E::Stored, N>;
  static constexpr int slab = rows < 4 ? rows : 4;

 public:
  TargetOf(const Grid& grid, void* values) : Base(grid, sizeof(Value), values) {}

  void store_rows(const Cursor& at, int z, L* a) const override {
    uint8_t* row = values + sizeof(Value) * row_begin(at, 4 * at.b[1], 4 * at.b[2] + z);
    for (int y = 0; y < slab; y++, row += sizeof(Value) * grid.n[0]) store_row(a + 4 * y, row);
  }

  void store_partial(Cursor at, int count, L* a) const override {
#if defined(__AVX512BW__)
    if (grid.blocks[0] > 1) {
      const Pieces<N> pieces(grid, at, count);
      for (int z = 0; z < (rows + 3) / 4; z++) store_pieces(pieces, z, a + 16 * z);
      return;
    }
#endif
    alignas(64) Value copy[rows][4 * N] = {};
    for_partial(at, count, [&](int r, int lane, uint64_t begin, size_t n) {
      if (Accumulate) memcpy(copy[r] + 4 * lane, values + sizeof(Value) * begin, n * sizeof(Value));
    });
    for (int r = 0; r < rows; r++) store_row(a + 4 * r, copy[r]);
    for_partial(at, count, [&](int r, int lane, uint64_t begin, size_t n) {
      memcpy(values + sizeof(Value) * begin, copy[r] + 4 * lane, n * sizeof(Value));
    });
  }

#if defined(__AVX512BW__)
  void store_pieces(const Pieces<N>& pieces, int z, L* a) const override {
    for (int r = 0; r < slab; r++) interleave(a + 4 * r);
    if constexpr (Accumulate) {
      for (int i = 0; i < 4 * slab; i++) a[i] = E::template widen<L>(E::narrow(a[i]));
      pieces.template store<true>(values, z, a);
    } else {
      Packed packed[4 * slab];
      for (int i = 0; i < 4 * slab; i++) packed[i] = E::narrow(a[i]);
      pieces.template store<false>(values, z, packed);
    }
  }
#endif

 private:
  template <class Visit>
  void for_partial(Cursor at, int count, Visit visit) const {
    for (int lane = 0; lane < count; lane++, at.advance(grid, 1))
      for (int r = 0; r < rows; r++) {
        uint64_t y = 4 * at.b[1] + r % 4, z = 4 * at.b[2] + r / 4, left = grid.n[0] - 4 * at.b[0];
        if (y < grid.n[1] && z < grid.n[2]) visit(r, lane, row_begin(at, y, z), left < 4 ? left : 4);
      }
  }

  static void store_row(L* a, void* dst) {
#if defined(__AVX512BW__)
    if constexpr (std::is_same_v<E, BFloat16> && !Accumulate) {  // to move half as many
      L low = E::narrow_pairs(a[0], a[1]), high = E::narrow_pairs(a[2], a[3]);
      compcoll::CC_LEVEL::store(dst, shuffle(low, high, Zip<N, 0>()));
      compcoll::CC_LEVEL::store(static_cast<char*>(dst) + sizeof(L), shuffle(low, high, Zip<N, N / 2>()));
      return;
    }
#endif
    interleave(a);
    for (int i = 0; i < 4; i++) store_vector(a[i], static_cast<char*>(dst) + i * N * sizeof(Value));
  }

  static void store_vector(L v, void* dst) {
    Packed packed = E::narrow(v);
    if constexpr (Accumulate) {
      using Real = typename LaneTypes<L>::Real;
      Real sum = compcoll::CC_LEVEL::load<Real>(dst) + bits_as<Real>(E::template widen<L>(packed));
      compcoll::CC_LEVEL::store(dst, sum);
    } else {
      compcoll::CC_LEVEL::store(dst, packed);
    }
  }
};

}  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
