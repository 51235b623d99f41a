// Loads and stores of blocks that are not in one row of whole blocks, with AVX-512. Masks assemble the values
// of N blocks, 4 vectors per row, from pieces of the array. A piece is the intersection of one vector with
// one row of blocks; masked-out memory is not accessed.
#pragma once
#include "elements.h"
#if defined(__AVX512BW__)
#include <immintrin.h>

namespace compcoll {
namespace CC_LEVEL {
namespace zfp {

template <class V>
inline V masked_load(V v, uint32_t mask, uint64_t address) {
  auto p = reinterpret_cast<const void*>(address);
  constexpr size_t size = sizeof(v[0]);
  if constexpr (size == 2) return V(_mm256_mask_loadu_epi16(__m256i(v), mask, p));
  else if constexpr (size == 4) return V(_mm512_mask_loadu_epi32(__m512i(v), mask, p));
  else return V(_mm512_mask_loadu_epi64(__m512i(v), mask, p));
}

template <class V>
inline void masked_store(uint64_t address, uint32_t mask, V v) {
  auto p = reinterpret_cast<void*>(address);
  constexpr size_t size = sizeof(v[0]);
  if constexpr (size == 2) _mm256_mask_storeu_epi16(p, mask, __m256i(v));
  else if constexpr (size == 4) _mm512_mask_storeu_epi32(p, mask, __m512i(v));
  else _mm512_mask_storeu_epi64(p, mask, __m512i(v));
}

template <int N>
class Pieces {
 public:
  template <class Grid, class Cursor>
  Pieces(const Grid& grid, Cursor at, int count) {
    for (int lane = 0; lane < count;) {
      uint64_t in_row = grid.blocks[0] - at.b[0], left = grid.n[0] - 4 * at.b[0];
      int some = uint64_t(count - lane) < in_row ? count - lane : in_row;
      int n = left < uint64_t(4 * some) ? left : 4 * some;
      if (n < 4 * some) pad(lane + some - 1, n % 4);
      add_row(grid, at, lane);
      add_pieces(4 * lane, n);
      at.advance(grid, some);
      lane += some;
    }
  }

  // The 4 vectors of row r of the blocks; zeros for missing blocks.
  template <class V>
  void load(const uint8_t* src, int r, V* v) const {
    for (int i = 0, p = 0; i < 4; i++) {
      v[i] = V{};
      for (; p < end_[i]; p++)
        v[i] = masked_load(v[i], pieces_[p].mask, address(src, p, r, i, sizeof(v[0][0])));
    }
  }

  // Adds padding outside of the array, in vectors of lanes.
  template <class L>
  void add_padding(L* v) const {
    using Int = typename LaneTypes<L>::Int;
    if (!padded_) return;
    for (int i = 0; i < 4; i++) v[i] = __builtin_shuffle(v[i], convert<Int>(load_source(i)));
  }

  // Stores the values of one z, 4 rows of 4 N values each, in vectors of N or fewer. Add: adds to what is
  // there.
  template <bool Add, class V>
  void store(uint8_t* dst, int z, const V* v) const {
    constexpr uint64_t size = sizeof(v[0][0]);
    constexpr int n = sizeof(V) / size, parts = N / n;
    for (int i = 0, p = 0; i < 4; i++)
      for (; p < end_[i]; p++) {
        const Row& row = rows_[pieces_[p].row];
        if (z >= row.nz) continue;
        for (int part = 0; part < parts; part++) {
          const uint32_t mask = pieces_[p].mask >> part * n & ~(~uint32_t(1) << (n - 1));
          const uint64_t first = row.z[z] + i * N + part * n;
          // The address of an empty part may be invalid, which makes an empty store slow.
          for (int y = 0; mask && y < row.ny; y++)
            add_or_store<Add>(reinterpret_cast<uint64_t>(dst) + size * (row.y[y] + first), mask,
                              v[(4 * y + i) * parts + part]);
        }
      }
  }

  // The source of value i in a partial block that has `left` values along an axis: padding repeats values.
  static uint64_t padded(uint64_t left, uint64_t i) { return i < left ? i : i == 3 ? 0 : left - 1; }

 private:
  struct Row {
    uint64_t y[4], z[4];  // offsets of the value for lane 0; y + z counts values
    int ny, nz;  // number of them that are not padding
  };
  struct Piece {
    uint32_t mask;
    int row;
  };

  Row rows_[N];
  Piece pieces_[N + 4];
  int end_[4] = {};  // end of the pieces of each vector
  int nrows_ = 0, npieces_ = 0;
  bool padded_ = false;
  alignas(64) int32_t source_[4 * N];

  template <bool Add, class V>
  static void add_or_store(uint64_t to, uint32_t mask, V v) {
    if constexpr (Add) {
      using Real = typename LaneTypes<V>::Real;
      v = V(Real(masked_load(V{}, mask, to)) + Real(v));
    }
    masked_store(to, mask, v);
  }

  uint64_t address(const uint8_t* base, int p, int r, int i, uint64_t size) const {
    const Row& row = rows_[pieces_[p].row];
    return reinterpret_cast<uint64_t>(base) + size * (row.y[r % 4] + row.z[r / 4] + i * N);
  }

  template <class Grid, class Cursor>
  void add_row(const Grid& grid, const Cursor& at, int lane) {
    Row& row = rows_[nrows_++];
    uint64_t left_y = grid.n[1] - 4 * at.b[1], left_z = grid.n[2] - 4 * at.b[2];
    for (int i = 0; i < 4; i++) {
      row.y[i] = (4 * at.b[1] + padded(left_y, i)) * grid.n[0] + 4 * at.b[0] - 4 * lane;
      row.z[i] = (4 * at.b[2] + padded(left_z, i)) * grid.n[1] * grid.n[0];
    }
    row.ny = left_y < 4 ? left_y : 4;
    row.nz = left_z < 4 ? left_z : 4;
  }

  // Adds pieces of the last row, whose n values begin at `first` in the 4 vectors.
  void add_pieces(int first, int n) {
    for (int end = first + n; first < end;) {
      int i = first / N, stop = end < i * N + N ? end : i * N + N;
      uint32_t mask = (uint32_t(1) << (stop - first)) - 1;
      pieces_[npieces_++] = {mask << (first - i * N), nrows_ - 1};
      for (; i < 4; i++) end_[i] = npieces_;
      first = stop;
    }
  }

  void pad(int lane, int left) {
    if (!padded_)
      for (int i = 0; i < 4 * N; i++) source_[i] = i % N;
    padded_ = true;
    for (int i = 0; i < 4; i++) source_[4 * lane + i] = 4 * lane % N + padded(left, i);
  }

  vec<int32_t, N> load_source(int i) const {
    return compcoll::CC_LEVEL::load<vec<int32_t, N>>(source_ + i * N);
  }
};

}  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
#endif
