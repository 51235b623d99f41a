// ZFP's decoder for 1-D blocks with a handful of bits behind the header, as at the lowest rates: all that
// such blocks can hold stands in a table, and a block is a row of it times the scale.
#pragma once
#include "line.h"

namespace compcoll {
namespace CC_LEVEL {
namespace zfp {

constexpr int tiny_bits = 8;

// Whether a table is worth while: of `count` blocks that have so many bits.
template <class W>
inline bool is_tiny(int maxbits, uint64_t count) {
  int body = maxbits - Format<W>::header;
  return body <= tiny_bits && count >> body >= 4;
}

template <class W>
struct TinyTable {
  static constexpr int N = vector_nbytes / sizeof(W);
  using L = vec<W, N>;
  using Real = typename Format<W>::Real;
  using Row = vec<Real, 4>;

  alignas(64) Row rows[(1 << tiny_bits) + N];

  // The four integers for each of the 2^body strings of bits; what lies behind is not used.
  explicit TinyTable(int body) {
    for (int first = 0; first < 1 << body; first += N) {
      L bits, a[4] = {};
      for (int i = 0; i < N; i++) bits[i] = first + i;
      bits &= (W(1) << body) - 1;
      L zeros = decode_coefficients<1>({bits}, 0, body, a);
      for (int i = 0; i < 4; i++) a[i] = from_negabinary(bits != 0 ? shift_right(a[i], zeros) : L{});
      transform_inverse<1>(a);
      for (int i = 0; i < 4; i++)
        for (int j = 0; j < N; j++) rows[first + j][i] = Real(typename Format<W>::Int(a[i][j]));
    }
  }
};

// `n` values in a row to memory, behind the first `begin` of the array.
template <class T>
inline void store_values(const typename T::W* values, uint64_t begin, uint64_t n, uint8_t* dst) {
  constexpr uint64_t N = T::N;
  dst += begin * sizeof(typename T::Target);
  uint64_t i = 0;
  for (; i + N <= n; i += N)
    T::store_vector(load<typename T::L>(values + i), dst + i * sizeof(typename T::Target));
  if (i == n) return;
  typename T::Target rest[N] = {};
  const size_t nbytes = (n - i) * sizeof *rest;
  memcpy(rest, dst + i * sizeof *rest, nbytes);
  T::store_vector(load<typename T::L>(values + i), rest);
  memcpy(dst + i * sizeof *rest, rest, nbytes);
}

template <class E, bool Accumulate>
void decode_tiny_line(const Grid& grid, int maxbits, const uint8_t* payload, uint64_t nbytes, uint8_t* dst) {
  using T = Tiles<E, 1, Accumulate>;
  using W = typename E::Word;
  using F = Format<W>;
  using Row = typename TinyTable<W>::Row;
  // Enough for values to have left the store buffer when they are read again.
  constexpr int some = 64;
  const TinyTable<W> table(maxbits - F::header);
  const uint32_t body = (1u << (maxbits - F::header)) - 1;
  alignas(64) Row values[some];
  for (uint64_t first = 0, count = grid.count(); first < count; first += some) {
    const int n = count - first < some ? count - first : some;
    uint8_t copy[some * (F::header + tiny_bits) / 8 + 32];
    uint64_t pos = first * maxbits;
    const uint8_t* bytes = with_room(payload, nbytes, pos, uint64_t(n) * maxbits, copy);
    pos %= 8;
    for (int i = 0; i < n; i++, pos += maxbits) {
      const uint32_t bits = load<uint32_t>(bytes + pos / 8) >> pos % 8;
      const uint32_t index = (bits >> F::header) & body & -(bits & 1);
      const W e = (bits >> 1) & (2 * F::bias + 1);
      values[i] = table.rows[index] * bits_as<typename F::Real>(dequantise_scale(e));
    }
    const uint64_t begin = 4 * first, left = grid.n[0] - begin;
    store_values<T>(reinterpret_cast<const W*>(values), begin, left < 4u * n ? left : 4u * n, dst);
  }
}

}  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
