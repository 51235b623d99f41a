// bfp on the GPU: a warp handles a tile, and its lanes are those of the payload. A block is two values per
// lane.
//
// N is the number of bits in modules for a fixed number: there dim is 1, rounding is to nearest, and loops
// over a whole tile are unrolled. N = 0 is for all other parameters, and for the last, partial tile.
#pragma once
#include "../bfp.h"
#include "checksum.cuh"
#include "real.cuh"
#include "warp.cuh"

namespace compcoll {
namespace CC_LEVEL {
namespace cuda {

// To nearest even, for magnitudes that fit.
CC_HD uint32_t bfp_integer(float v) {
#if defined(__CUDACC_RTC__)
  return uint32_t(__float2int_rn(v));
#else
  return uint32_t(_mm_cvtss_si32(_mm_set_ss(v)));
#endif
}
CC_HD uint64_t bfp_integer(double v) { return bfp::nearest_by_sum<double, uint64_t>(v); }
CC_HD float bfp_value(uint32_t q) { return float(int32_t(q)); }
CC_HD double bfp_value(uint64_t q) { return bfp::value_by_sum<double, uint64_t>(q); }

// Rounding to integers, offset by `zero`: by conversion or, for magnitudes up to 2^22, by a sum whose last
// bits are the integer.
template <uint32_t N, class F, bool small = N && N <= 22>
struct BfpRounding {
  using Word = typename bfp::Form<F>::Word;
  static constexpr Word zero = 0;
  static CC_HD Word integer(F y) { return bfp_integer(y); }
  static CC_HD F value(Word q) { return bfp_value(q); }
};
template <uint32_t N>
struct BfpRounding<N, float, true> {
  static constexpr uint32_t zero = 0x4b400000;
  static constexpr float magic = 0x1.8p23f;
  static CC_HD uint32_t integer(float y) { return bit_cast<uint32_t>(add(y, magic)); }
  static CC_HD float value(uint32_t q) { return subtract(bit_cast<float>(q), magic); }
};

template <class F, uint32_t N>
CC_HD bfp::Rules<F> bfp_rules(const Job& job) {
  const uint64_t known[] = {N | 1 << 8, 0};
  return bfp::Rules<F>(N ? known : job.params);
}

template <class T>
struct BfpTile {
  using F = typename T::Sum;
  using Form = bfp::Form<F>;
  using Word = typename Form::Word;
  static constexpr uint32_t values = bfp::tile<F>, most_blocks = bfp::tile_blocks<F>;
  static constexpr Word magnitude = Word(-1) >> 1;

  const bfp::Rules<F>& rules;
  const bfp::Layout<F>& layout;
  uint64_t number, at;  // index of its first value
  uint32_t blocks, lane, below;  // below: the lane `dim` before this one, cyclically

  CC_HD BfpTile(const Job& job, const bfp::Rules<F>& r, const bfp::Layout<F>& l, uint64_t t)
      : rules(r), layout(l), number(t), at(t * values), lane(lane_id()), below((lane_id() - r.dim) & 31) {
    const uint64_t rest = (job.n - at + bfp::block - 1) / bfp::block;
    blocks = rest < most_blocks ? uint32_t(rest) : most_blocks;
  }
  CC_HD uint64_t first_word() const { return number * rules.bits * bfp::row + lane; }
  CC_HD uint32_t rows() const { return uint32_t(bfp::Layout<F>::rows(blocks, rules)); }
  // The lane's word of scales, counted in 32 bits; has_scales: true if there is one.
  CC_HD uint64_t scale_word() const { return layout.codes_nbytes / 4 + number * (most_blocks / 2) + lane; }
  CC_HD bool has_scales() const {
    return lane < most_blocks / 2 && number * (most_blocks / 2) + lane < layout.scales_nbytes / 4;
  }
  CC_HD uint64_t base_word() const {
    return (layout.codes_nbytes + layout.scales_nbytes) / sizeof(F) + number * rules.dim + lane;
  }
  // For dim = 1: the last lane's value.
  static CC_HD Word last(Word v) { return __shfl_sync(full_warp, v, 31); }
  // The value of the lane `dim` before this one.
  CC_HD Word before(Word v) const {
    if constexpr (sizeof(Word) == 4) return __shfl_sync(full_warp, v, int(below));
    else
      return __shfl_sync(full_warp, uint32_t(v), int(below)) |
             uint64_t(__shfl_sync(full_warp, uint32_t(v >> 32), int(below))) << 32;
  }
  CC_HD bool begins() const { return lane < rules.dim; }
  CC_HD bool is_whole(const Job& job) const { return job.n - at >= values; }
};

// A value of the tile; after the last value, the last `dim` values repeat.
template <class T>
CC_HD typename T::Sum bfp_load(const Job& job, const BfpTile<T>& tile, uint32_t i) {
  uint64_t at = tile.at + i;
  if (at >= job.n) {
    const uint64_t over = at - job.n, back = (over / tile.rules.dim + 1) * tile.rules.dim;
    if (back > i) return 0;
    at -= back;
  }
  return T::value(reinterpret_cast<const typename T::Stored*>(job.src)[at]);
}

// Packs a lane's codes into its words.
template <class T>
struct BfpWriter {
  using Word = typename BfpTile<T>::Word;
  Word* to;
  uint64_t index;
  Word word = 0;
  uint32_t filled = 0;

  CC_HD void put(uint32_t bits, Word code, Checksum& sum) {
    code &= Word(-1) >> (8 * sizeof(Word) - bits);
    word |= code << filled;
    filled += bits;
    if (filled < 8 * sizeof(Word)) return;
    flush(sum);
    filled -= 8 * sizeof(Word);
    word = code >> (bits - filled);
  }
  CC_HD void flush(Checksum& sum) {
    to[index] = word;
    sum.add(word, index);
    index += bfp::row;
  }
};

// `largest`: largest magnitude and step.
template <class T, uint32_t N>
CC_HD void bfp_encode_tile(const Job& job, const BfpTile<T>& tile, typename BfpTile<T>::Word (&largest)[2],
                           Checksum& sum) {
  using F = typename T::Sum;
  using Word = typename BfpTile<T>::Word;
  using Stored = typename T::Stored;
  using Rounding = BfpRounding<N, F>;
  constexpr uint32_t batch = bfp::tile_blocks<F>;  // rows: half of a tile
  Stored ahead[N ? batch : 1];  // loads of a batch are issued before the first use
  auto load_batch = [&](uint32_t first) {
    auto from = reinterpret_cast<const Stored*>(job.src) + tile.at + tile.lane;
#pragma unroll
    for (uint32_t i = 0; i < batch; i++) ahead[i] = from[bfp::row * (first + i)];
  };
  auto load = [&](uint32_t i) {
    if constexpr (N > 0) return T::number(ahead[i % batch]);
    else return bfp_load(job, tile, bfp::row * i + tile.lane);
  };
  if constexpr (N > 0) load_batch(0);
  const bool begins = tile.begins();
  F p = begins ? load(0) : F(0);  // only used at the start of a block
  auto words = reinterpret_cast<Word*>(job.dst);
  if (begins) {
    words[tile.base_word()] = bit_cast<Word>(p);
    sum.add(bit_cast<Word>(p), tile.base_word());
  }
  BfpWriter<T> writer{words, tile.first_word()};
  uint32_t scales = 0;
  const uint32_t blocks = N ? tile.most_blocks : tile.blocks;
#pragma unroll
  for (uint32_t b = 0; b < blocks; b++) {
    if constexpr (N > 0)
      if (2 * b == batch) load_batch(batch);
    const F x0 = load(2 * b), x1 = load(2 * b + 1);
    const Word u0 = bit_cast<Word>(x0), u1 = bit_cast<Word>(x1), v0 = tile.before(u0), v1 = tile.before(u1);
    const F before0 = begins ? p : bit_cast<F>(v0), before1 = bit_cast<F>(begins ? v0 : v1);
    const Word d0 = bit_cast<Word>(subtract(x0, before0)), d1 = bit_cast<Word>(subtract(x1, before1));
    const Word most = warp_max(larger_magnitude(u0, u1)), change = warp_max(larger_magnitude(d0, d1));
    const auto scale = bfp::choose<F, F, Word>(tile.rules, most, change);
    const uint32_t code = uint32_t(scale.code);
    largest[0] = most > largest[0] ? most : largest[0];
    if (tile.lane == b / 2) scales |= code << 16 * (b % 2);
    F y0 = multiply(x0, scale.inverse), y1 = multiply(x1, scale.inverse);
    if (tile.rules.stochastic) {
      const uint32_t key = blockscale_key(job.params[1], code, tile.number * tile.most_blocks + b);
      y0 = bfp::round_by_hash(y0, key, tile.lane), y1 = bfp::round_by_hash(y1, key, bfp::row + tile.lane);
    }
    const Word q0 = Rounding::integer(y0), q1 = Rounding::integer(y1);
    const Word start = bfp_integer(multiply(p, scale.inverse)) + Rounding::zero;
    const Word w0 = tile.before(q0), w1 = tile.before(q1);
    writer.put(tile.rules.bits, q0 - (code & 1 ? begins ? start : w0 : Rounding::zero), sum);
    writer.put(tile.rules.bits, q1 - (code & 1 ? begins ? w0 : w1 : Rounding::zero), sum);
    p = multiply(Rounding::value(w1), scale.step);
  }
  if (writer.filled) writer.flush(sum);
  if (!tile.has_scales()) return;
  reinterpret_cast<uint32_t*>(job.dst)[tile.scale_word()] = scales;
  sum.add(scales, tile.scale_word());
  const uint32_t low = scales & 0xffff, high = scales >> 16;
  const Word step = bit_cast<Word>(bfp::step_of<F>(low > high ? low : high));
  largest[1] = step > largest[1] ? step : largest[1];
}

template <class T, uint32_t N>
CC_HD void bfp_encode(const Job& job) {
  using F = typename T::Sum;
  using Word = typename BfpTile<T>::Word;
  const bfp::Rules<F> rules = bfp_rules<F, N>(job);
  const bfp::Layout<F> layout(job.n, rules);
  const bool fits = rules.valid && layout.nbytes <= job.nbytes;
  Word largest[2] = {};
  Checksum sum(job);
  for (uint64_t t = warp_id(); fits && t < layout.tiles; t += warp_count()) {
    const BfpTile<T> tile(job, rules, layout, t);
    if (N && tile.is_whole(job)) bfp_encode_tile<T, N>(job, tile, largest, sum);
    else bfp_encode_tile<T, 0>(job, tile, largest, sum);
  }
  for (uint32_t i = 0; i < 2; i++) note_max(&job.result->extent[i], largest[i]);
  sum.note(job);
  complete(job, [&] {
    Result& result = *job.result;
    const Word most = Word(result.extent[0]), step = Word(result.extent[1]);
    const int64_t refused = bfp::refusal(rules, most);
    result.nbytes = !rules.valid ? int64_t(UNSUPPORTED)
                    : !fits      ? int64_t(TOO_LARGE)
                    : refused    ? refused
                                 : int64_t(layout.nbytes);
    constexpr bool narrow = sizeof(typename T::Stored) == 2;
    result.bound = bfp::bound(rules, T::widen(bit_cast<F>(step)), T::widen(bit_cast<F>(most)),
                              narrow ? T::unit : 0, narrow ? T::tiny : 0);
  });
}

// Unpacks a lane's codes from its words. If N is known, all words are loaded before the first use.
template <class T, uint32_t N>
struct BfpReader {
  using Word = typename BfpTile<T>::Word;
  const Word* from;
  uint64_t index;
  uint32_t rows;  // rows left
  Word word = 0;
  uint32_t at = 0;
  Word ahead[N ? N : 1];

  CC_HD BfpReader(const Word* words, const BfpTile<T>& tile, Checksum& sum)
      : from(words), index(tile.first_word()), rows(N ? N : tile.rows()) {
    if constexpr (N > 0) {
#pragma unroll
      for (uint32_t i = 0; i < N; i++) ahead[i] = from[index + i * bfp::row];
      if (sum.wanted) {
#pragma unroll
        for (uint32_t i = 0; i < N; i++) sum.add(ahead[i], index + i * bfp::row);
      }
    }
    next(sum);
  }
  CC_HD void next(Checksum& sum) {
    word = 0;
    if (rows == 0) return;
    if constexpr (N > 0) {
      word = ahead[N - rows];
    } else {
      word = from[index];
      sum.add(word, index);
      index += bfp::row;
    }
    rows--;
  }
  CC_HD Word take(uint32_t bits, Checksum& sum) {
    constexpr uint32_t all = 8 * sizeof(Word);
    using Signed = typename bfp::Form<typename T::Sum>::Signed;
    Word code = word >> at;
    at += bits;
    if (at >= all) {
      at -= all;
      next(sum);
      code |= word << (bits - at);
    }
    return Word(Signed(code << (all - bits)) >> (all - bits));
  }
};

// Replaces differences by their sums since the block's start, for dim = 1; returns the last sum. For few
// bits, the sums of both halves of a block share a word.
template <uint32_t N>
CC_HD uint32_t bfp_sum(uint32_t& q0, uint32_t& q1) {
  auto last = BfpTile<F32>::last;
  auto low = [](uint32_t both) { return uint32_t(int32_t(int16_t(both))); };
  auto high = [](uint32_t both) { return uint32_t(int32_t(both + 0x8000) >> 16); };
  uint32_t end0, end1;
  if constexpr (N <= 11) {
    const uint32_t both = sum_upto(q0 + (q1 << 16)), end = last(both);
    q0 = low(both), q1 = high(both), end0 = low(end), end1 = high(end);
  } else {
    q0 = sum_upto(q0), q1 = sum_upto(q1);
    end0 = last(q0), end1 = last(q1);
  }
  q1 += end0;
  return end0 + end1;
}

// Stores a finite value, rounded.
template <class T, bool adding>
CC_HD void bfp_deliver(uint8_t* dst, uint64_t i, typename T::Sum v) {
  if constexpr (sizeof(typename T::Stored) == 2) {
    constexpr float most = float(T::most);
    if (T::infinity == F16::infinity) v = clamp(v, most);
    if constexpr (adding) v = T::number(T::nearest(v));
    else return void(reinterpret_cast<typename T::Stored*>(dst)[i] = T::nearest(v));
  }
  deliver<T, adding>(dst, i, v);
}

template <class T, uint32_t N, bool adding>
CC_HD void bfp_decode_tile(const Job& job, const BfpTile<T>& tile, Checksum& sum) {
  using F = typename T::Sum;
  using Word = typename BfpTile<T>::Word;
  const bool begins = tile.begins();
  auto words = reinterpret_cast<const Word*>(job.src);
  Word base = 0;
  uint32_t scales = 0;
  if (begins) {
    base = words[tile.base_word()];
    sum.add(base, tile.base_word());
  }
  if (tile.has_scales()) {
    scales = reinterpret_cast<const uint32_t*>(job.src)[tile.scale_word()];
    sum.add(scales, tile.scale_word());
  }
  BfpReader<T, N> reader(words, tile, sum);
  bool bad = (base & tile.magnitude) >= bfp::Form<F>::refused;
  for (uint32_t k = 0; k < 2; k++)
    bad = bad || (2 * tile.lane + k < tile.blocks && !bfp::sound<F>(scales >> 16 * k & 0xffff));
  if (__ballot_sync(full_warp, bad)) {
    if (tile.lane == 0) atomicOr(&job.result->bad, 1u);
    while (N == 0 && reader.rows) reader.next(sum);
    return;
  }
  if constexpr (N > 0) base = __shfl_sync(full_warp, base, 0);
  F p = bit_cast<F>(base);
  const uint32_t blocks = N ? tile.most_blocks : tile.blocks;
#pragma unroll
  for (uint32_t b = 0; b < blocks; b++) {
    const uint32_t code = __shfl_sync(full_warp, scales, int(b / 2)) >> 16 * (b % 2) & 0xffff;
    const F step = bfp::step_of<F>(code);
    Word q0 = reader.take(tile.rules.bits, sum), q1 = reader.take(tile.rules.bits, sum), last;
    if (!(code & 1)) {
      last = N ? tile.last(q1) : tile.before(q1);
    } else {
      const Word start = bfp_integer(bfp::before_block(p, reciprocal(step)));
      if constexpr (N > 0) {
        last = bfp_sum<N>(q0, q1) + start;
        q0 += start, q1 += start;
      } else {
        q0 += begins ? start : 0;
        for (uint32_t s = tile.rules.dim; s < bfp::row; s *= 2) q0 = add_from_below(q0, s);
        const Word carry = tile.before(q0);
        q1 += begins ? carry : 0;
        for (uint32_t s = tile.rules.dim; s < bfp::row; s *= 2) q1 = add_from_below(q1, s);
        last = tile.before(q1);
      }
    }
    p = multiply(bfp_value(last), step);
    const uint64_t i = tile.at + b * bfp::block + tile.lane;
    if (N || i < job.n) bfp_deliver<T, adding>(job.dst, i, multiply(bfp_value(q0), step));
    if (N || i + bfp::row < job.n)
      bfp_deliver<T, adding>(job.dst, i + bfp::row, multiply(bfp_value(q1), step));
  }
}

template <class T, uint32_t N, bool adding>
CC_HD void bfp_decode(const Job& job) {
  using F = typename T::Sum;
  const bfp::Rules<F> rules = bfp_rules<F, N>(job);
  const bfp::Layout<F> layout(job.n, rules);
  Checksum sum(job);
  for (uint64_t t = warp_id(); t < layout.tiles; t += warp_count()) {
    const BfpTile<T> tile(job, rules, layout, t);
    if (N && tile.is_whole(job)) bfp_decode_tile<T, N, adding>(job, tile, sum);
    else bfp_decode_tile<T, 0, adding>(job, tile, sum);
  }
  sum.note(job);
}

}  // namespace cuda
}  // namespace CC_LEVEL
}  // namespace compcoll
