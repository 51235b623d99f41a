// int8, int4 and fp8 on the GPU: a lane takes 4 adjacent values, so a block belongs to a quarter as many
// lanes as it has values, and a warp takes rows of 128 values. The division for block b of a tile is done by
// lane b.
#pragma once
#include "../blockscale.h"
#include "bits.cuh"
#include "checksum.cuh"
#include "real.cuh"

namespace compcoll {
namespace CC_LEVEL {
namespace cuda {

template <int largest>
struct Integer {
  static constexpr double limit = largest, error = 0.5 / largest;
  // To nearest even: adding this constant leaves the integer in the low word.
  static CC_HD uint32_t nearest(double v) { return uint32_t(bit_cast<uint64_t>(v + 0x1.8p52)); }
  static CC_HD uint32_t stochastic(double v, uint32_t hash) {
    return nearest(v + (double(int32_t(hash)) * 0x1p-32 + 0x1p-33));
  }
  static CC_HD double value(uint32_t code) { return double(int32_t(code)); }
};

struct Bytes {
  static constexpr bool halves = false;
  static CC_HD uint64_t nbytes(uint64_t n) { return n; }
};

struct Int8 : Integer<127>, Bytes {
  static CC_HD uint32_t code(uint32_t codes, uint32_t k) { return uint32_t(int32_t(codes << (24 - 8 * k)) >> 24); }
};

struct Int4 : Integer<7> {
  static constexpr bool halves = true;
  static CC_HD uint64_t nbytes(uint64_t n) { return n / 2 + n % 2; }
  static CC_HD uint32_t code(uint32_t codes, uint32_t k) { return uint32_t(int32_t(codes << (28 - 4 * k)) >> 28); }
};

struct Fp8 : Bytes {
  static constexpr double limit = 448, error = 16.0 / 448;
  static CC_HD uint32_t nearest(double v) { return e4m3_nearest<uint32_t>(to_float(v)); }
  static CC_HD uint32_t stochastic(double v, uint32_t hash) {
    return e4m3_stochastic<uint32_t>(to_float(v), hash);
  }
  static CC_HD double value(uint32_t code) { return to_double(e4m3_value<float>(code)); }
  static CC_HD uint32_t code(uint32_t codes, uint32_t k) { return codes >> 8 * k & 255; }
};

template <class T> struct ScaleBits { using type = uint32_t; };
template <> struct ScaleBits<F64> { using type = uint64_t; };

constexpr uint32_t scaled_row = 128;

// job.params: number of values in a block, and whether rounding is stochastic; the seed.
template <class Q, class T>
struct Scaled {
  using Scale = typename T::Sum;
  using Bits = typename ScaleBits<T>::type;
  static constexpr uint32_t rows = sizeof(Scale) == 8 ? 2 : 4, tile = rows * scaled_row;  // per warp
  uint64_t blocks, tiles;
  uint32_t log2;  // of the number of values in a block
  bool stochastic;

  CC_HD explicit Scaled(const Job& job) {
    log2 = lowest_one(uint32_t(job.params[0]));
    stochastic = job.params[0] >> 32;
    blocks = (job.n + (1u << log2) - 1) >> log2;
    tiles = (job.n + tile - 1) / tile;
  }
  CC_HD uint64_t scales_nbytes() const { return blocks * sizeof(Scale); }
  CC_HD uint64_t nbytes(const Job& job) const { return scales_nbytes() + Q::nbytes(job.n); }
  // Index in the tile of the block that contains this lane's values in a row; and index of a block's first
  // value.
  CC_HD uint32_t block_of(uint32_t row) const { return (row * scaled_row + 4 * lane_id()) >> log2; }
  CC_HD uint32_t begin(uint32_t block) const { return block << log2; }

  // Factor that keeps quotients by a tiny float64 scale in the normal range.
  static CC_HD double lift(Scale s) {
    if constexpr (sizeof(Scale) == 8) return s < 0x1p-500 ? 0x1p600 : 1;
    else return 1;
  }
};

CC_HD uint32_t from_lane(uint32_t v, uint32_t lane) { return __shfl_sync(full_warp, v, int(lane)); }
CC_HD uint64_t from_lane(uint64_t v, uint32_t lane) {
  return from_lane(uint32_t(v), lane) | uint64_t(from_lane(uint32_t(v >> 32), lane)) << 32;
}
CC_HD double from_lane(double v, uint32_t lane) { return bit_cast<double>(from_lane(bit_cast<uint64_t>(v), lane)); }

// Four values starting at index i; zeros after the last value.
template <bool whole, class Stored>
CC_HD Pack<Stored, 4> scaled_load(const uint8_t* src, uint64_t i, uint64_t n) {
  auto x = reinterpret_cast<const Stored*>(src) + i;
  if constexpr (whole) return *reinterpret_cast<const Pack<Stored, 4>*>(x);
  Pack<Stored, 4> row;
  for (uint32_t k = 0; k < 4; k++) row.v[k] = i + k < n ? x[k] : Stored(0);
  return row;
}

// For each of a lane's rows, the largest magnitude of its block.
template <class Word, class S, class Rows>
CC_HD void scaled_most(const S& layout, const Rows& x, Word* most) {
  for (uint32_t r = 0; r < S::rows; r++) {
    most[r] = 0;
    for (uint32_t k = 0; k < 4; k++) {
      using Stored = decltype(x[r].v[k] + 0);
      const Word w = Word(Word(Stored(x[r].v[k])) & (Word(-1) >> 1 >> 8 * (sizeof(Word) - sizeof x[r].v[k])));
      most[r] = w > most[r] ? w : most[r];
    }
  }
  const uint32_t lanes = layout.log2 < 7 ? 1u << (layout.log2 - 2) : 32;
  for (uint32_t s = lanes / 2; s; s /= 2)
    for (uint32_t r = 0; r < S::rows; r++) {
      const Word other = __shfl_xor_sync(full_warp, most[r], int(s));
      most[r] = other > most[r] ? other : most[r];
    }
  if (layout.log2 == 8)
    for (uint32_t r = 0; r < S::rows; r += 2)
      most[r] = most[r + 1] = most[r] > most[r + 1] ? most[r] : most[r + 1];
}

// Moves values of blocks from rows to the lane with the block's number.
template <class Word, class S>
CC_HD Word scaled_to_lane(const S& layout, const Word* of_row) {
  const uint32_t begin = layout.begin(lane_id());
  Word own = 0;
  for (uint32_t r = 0; r < S::rows; r++) {
    const Word v = from_lane(of_row[r], begin % scaled_row / 4);
    own = begin / scaled_row == r ? v : own;
  }
  return own;
}

// Stores four codes starting at index i, and adds them to the checksum. `offset`: number of words before the
// codes.
template <class Q, bool whole>
CC_HD void scaled_store(uint8_t* codes, uint64_t i, uint64_t n, uint32_t row, uint64_t offset, Checksum& sum) {
  if (!whole && i + 4 > n) row = i < n ? row & ((1u << (Q::halves ? 4 : 8) * uint32_t(n - i)) - 1) : 0;
  if constexpr (Q::halves) {
    const uint32_t next = __shfl_xor_sync(full_warp, row, 1);
    if (whole || i + 4 <= n) reinterpret_cast<uint16_t*>(codes)[i / 4] = uint16_t(row);
    else
      for (uint32_t k = 0; i + k < n; k += 2) codes[(i + k) / 2] = uint8_t(row >> 4 * k);
    if (lane_id() % 2 == 0 && (whole || i < n)) sum.add(row | next << 16, offset + i / 8);
  } else {
    if (whole || i + 4 <= n) reinterpret_cast<uint32_t*>(codes)[i / 4] = row;
    else
      for (uint32_t k = 0; i + k < n; k++) codes[i + k] = uint8_t(row >> 8 * k);
    if (whole || i < n) sum.add(row, offset + i / 4);
  }
}

// whole: the tile has all of its values, and four can be loaded at once.
template <class Q, class T, bool whole>
CC_HD void scaled_encode_tile(const Job& job, const Scaled<Q, T>& layout, uint64_t t, typename Scaled<Q, T>::Bits& all,
                              Checksum& sum) {
  using S = Scaled<Q, T>;
  using Stored = typename T::Stored;
  using Word = typename S::Bits;  // shuffles and atomics have at least 32 bits
  const uint64_t at = t * S::tile + 4 * lane_id(), first = t * S::tile >> layout.log2;
  Pack<Stored, 4> x[S::rows];
  for (uint32_t r = 0; r < S::rows; r++) x[r] = scaled_load<whole, Stored>(job.src, at + r * scaled_row, job.n);
  Word most[S::rows];
  scaled_most(layout, x, most);
  for (uint32_t r = 0; r < S::rows; r++) all = most[r] > all ? most[r] : all;
  // Lane b handles block b of the tile.
  const Word own = scaled_to_lane(layout, most);
  const uint64_t b = first + lane_id();
  const auto scale = T::number(Stored(own));
  const auto bits = bit_cast<Word>(scale);
  const double lift = S::lift(scale);
  const double inverse = own ? Q::limit / (T::widen(scale) * lift) : 0;
  if (lane_id() < S::tile >> layout.log2 && b < layout.blocks) {
    reinterpret_cast<Word*>(job.dst)[b] = bits;
    sum.add(bits, b);
  }
  const uint32_t key = layout.stochastic ? blockscale_key(job.params[1], bits, b) : 0;
  uint8_t* codes = job.dst + layout.scales_nbytes();
#pragma unroll
  for (uint32_t r = 0; r < S::rows; r++) {
    const uint32_t block = layout.block_of(r);
    const double by = from_lane(inverse, block), up = sizeof(Stored) == 8 ? from_lane(lift, block) : 1;
    const uint32_t keyed = layout.stochastic ? from_lane(key, block) : 0;
    const uint32_t j = r * scaled_row + 4 * lane_id() - layout.begin(block);
    uint32_t row = 0;
    for (uint32_t k = 0; k < 4; k++) {
      double v = T::widen(T::number(x[r].v[k]));
      if constexpr (sizeof(Stored) == 8) v *= up;
      v *= by;
      const uint32_t code = layout.stochastic
                                ? Q::stochastic(v, blockscale_mix(keyed + (j + k) * blockscale_golden))
                                : Q::nearest(v);
      row |= (code & (Q::halves ? 15 : 255)) << (Q::halves ? 4 : 8) * k;
    }
    scaled_store<Q, whole>(codes, at + r * scaled_row, job.n, row, layout.scales_nbytes() / 4, sum);
  }
}

template <class Q, class T>
CC_HD void scaled_finish(const Job& job, const Scaled<Q, T>& layout) {
  Result& result = *job.result;
  const auto most = typename T::Stored(result.extent[0]);
  const double top = T::widen(T::number(most));
  const double gap = Q::error * (layout.stochastic ? 2 : 1) * (1 + 0x1p-20), rounding = T::unit * 1.01;
  const uint64_t nbytes = layout.nbytes(job);
  result.nbytes = nbytes > job.nbytes   ? int64_t(TOO_LARGE)
                  : most >= T::infinity ? int64_t(NONFINITE)
                                        : int64_t(nbytes);
  result.bound = most ? top * (gap + rounding) + 4 * T::tiny : 0;
}

template <class Q, class T>
CC_HD void scaled_encode(const Job& job) {
  using S = Scaled<Q, T>;
  const S layout(job);
  typename Scaled<Q, T>::Bits all = 0;
  Checksum sum(job);
  const uint64_t whole = aligned(job.src, sizeof(Pack<typename T::Stored, 4>) < 16 ? 8 : 16) ? job.n / S::tile : 0;
  if (layout.nbytes(job) <= job.nbytes) {
    uint64_t t = warp_id();
    for (; t < whole; t += warp_count()) scaled_encode_tile<Q, T, true>(job, layout, t, all, sum);
    for (; t < layout.tiles; t += warp_count()) scaled_encode_tile<Q, T, false>(job, layout, t, all, sum);
  }
  note_max(&job.result->extent[0], all);
  sum.note(job);
  complete(job, [&] { scaled_finish<Q, T>(job, layout); });
}

// Loads four codes starting at index i, and adds them to the checksum.
template <class Q, bool whole>
CC_HD uint32_t scaled_codes(const uint8_t* codes, uint64_t i, uint64_t n, uint64_t offset, Checksum& sum) {
  if constexpr (whole) {
    if constexpr (!Q::halves) {
      const uint32_t row = reinterpret_cast<const uint32_t*>(codes)[i / 4];
      sum.add(row, offset + i / 4);
      return row;
    } else {
      const uint32_t row = reinterpret_cast<const uint16_t*>(codes)[i / 4];
      const uint32_t next = __shfl_xor_sync(full_warp, row, 1);
      if (lane_id() % 2 == 0) sum.add(row | next << 16, offset + i / 8);
      return row;
    }
  } else {
    const uint64_t end = Q::nbytes(n), begin = Q::halves ? i / 2 : i;
    uint32_t row = 0;
    for (uint32_t k = 0; k < (Q::halves ? 2 : 4); k++) row |= begin + k < end ? uint32_t(codes[begin + k]) << 8 * k : 0;
    const uint32_t next = Q::halves ? __shfl_xor_sync(full_warp, row, 1) : 0;
    if (begin < end && (!Q::halves || lane_id() % 2 == 0)) sum.add(row | next << 16, offset + begin / 4);
    return row;
  }
}

// Stores four values starting at index i, or adds them.
template <class T, bool adding, bool whole>
CC_HD void scaled_deliver(uint8_t* dst, uint64_t i, uint64_t n, const typename T::Sum* v) {
  if constexpr (whole) {
    using S = typename Choice<adding, typename T::Sum, typename T::Stored>::type;
    auto p = reinterpret_cast<Pack<S, 4>*>(reinterpret_cast<S*>(dst) + i);
    Pack<S, 4> row;
    if constexpr (adding) row = *p;
    for (uint32_t k = 0; k < 4; k++)
      if constexpr (adding) row.v[k] = add(row.v[k], v[k]);
      else row.v[k] = T::stored(v[k]);
    *p = row;
  } else {
    for (uint32_t k = 0; k < 4; k++)
      if (i + k < n) deliver<T, adding>(dst, i + k, v[k]);
  }
}

template <class Q, class T, bool adding, bool whole>
CC_HD void scaled_decode_tile(const Job& job, const Scaled<Q, T>& layout, uint64_t t, Checksum& sum) {
  using S = Scaled<Q, T>;
  using Word = typename S::Bits;
  const uint64_t at = t * S::tile + 4 * lane_id(), b = (t * S::tile >> layout.log2) + lane_id();
  const uint8_t* codes = job.src + layout.scales_nbytes();
  uint32_t row[S::rows];
  const bool has_block = lane_id() < S::tile >> layout.log2 && b < layout.blocks;
  const Word bits = has_block ? reinterpret_cast<const Word*>(job.src)[b] : 0;
  for (uint32_t r = 0; r < S::rows; r++)
    row[r] = scaled_codes<Q, whole>(codes, at + r * scaled_row, job.n, layout.scales_nbytes() / 4, sum);
  if (has_block) sum.add(bits, b);
  constexpr Word infinity = sizeof bits == 8 ? Word(F64::infinity) : Word(F32::infinity);
  // Negative, infinite or NaN; -0 counts as 0, as on the CPU.
  const uint32_t bad = __ballot_sync(full_warp, bits >= infinity && bits << 1);
  if (bad && lane_id() == 0) atomicOr(&job.result->bad, 1u);
  const auto scale = bit_cast<typename T::Sum>(bits);
  const double lift = S::lift(scale), top = T::widen(scale) * lift, step = top / Q::limit;
#pragma unroll
  for (uint32_t r = 0; r < S::rows; r++) {
    const uint32_t block = layout.block_of(r);
    const double by = from_lane(step, block);
    double most = 0, down = 1;
    if constexpr (sizeof scale == 8) most = from_lane(top, block), down = 1 / from_lane(lift, block);
    typename T::Sum value[4];
    for (uint32_t k = 0; k < 4; k++) {
      double v = Q::value(Q::code(row[r], k)) * by;
      if constexpr (sizeof scale == 8) {
        v = v > most ? most : v;
        v = v < -most ? -most : v;
        v *= down;
      }
      value[k] = T::round(v);
    }
    if (!(bad >> block & 1)) scaled_deliver<T, adding, whole>(job.dst, at + r * scaled_row, job.n, value);
  }
}

template <class Q, class T, bool adding>
CC_HD void scaled_decode(const Job& job) {
  using S = Scaled<Q, T>;
  using Element = typename Choice<adding, typename T::Sum, typename T::Stored>::type;
  const S layout(job);
  Checksum sum(job);
  const uint64_t whole = aligned(job.dst, sizeof(Pack<Element, 4>) < 16 ? 8 : 16) ? job.n / S::tile : 0;
  uint64_t t = warp_id();
  for (; t < whole; t += warp_count()) scaled_decode_tile<Q, T, adding, true>(job, layout, t, sum);
  for (; t < layout.tiles; t += warp_count()) scaled_decode_tile<Q, T, adding, false>(job, layout, t, sum);
  sum.note(job);
}

}  // namespace cuda
}  // namespace CC_LEVEL
}  // namespace compcoll
