// bfp on the GPU: a warp has a tile, and its lanes are those of the payload. A block is two values of each lane.
#pragma once
#include "../bfp.h"
#include "checksum.cuh"
#include "real.cuh"
#include "warp.cuh"

namespace compcoll {
namespace CC_LEVEL {
namespace cuda {

// To nearest even, of magnitudes that fit.
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

template <class T>
struct BfpTile {
  using F = typename T::Sum;
  using Form = bfp::Form<F>;
  using Word = typename Form::Word;
  static constexpr uint32_t values = bfp::tile<F>, most_blocks = bfp::tile_blocks<F>;
  static constexpr Word magnitude = Word(-1) >> 1;

  const bfp::Rules<F>& rules;
  const bfp::Layout<F>& layout;
  uint64_t number, at;  // its first value
  uint32_t blocks, lane, below;  // below: the lane `dim` before this one, round the corner

  CC_HD BfpTile(const Job& job, const bfp::Rules<F>& r, const bfp::Layout<F>& l, uint64_t t)
      : rules(r), layout(l), number(t), at(t * values), lane(lane_id()), below((lane_id() - r.dim) & 31) {
    const uint64_t rest = (job.n - at + bfp::block - 1) / bfp::block;
    blocks = rest < most_blocks ? uint32_t(rest) : most_blocks;
  }
  CC_HD uint64_t first_word() const { return number * rules.bits * bfp::row + lane; }
  CC_HD uint32_t rows() const { return uint32_t(bfp::Layout<F>::rows(blocks, rules)); }
  // The lane's word of scales, in 32 bits; whether it has one.
  CC_HD uint64_t scale_word() const { return layout.codes_nbytes / 4 + number * (most_blocks / 2) + lane; }
  CC_HD bool has_scales() const {
    return lane < most_blocks / 2 && number * (most_blocks / 2) + lane < layout.scales_nbytes / 4;
  }
  CC_HD uint64_t base_word() const {
    return (layout.codes_nbytes + layout.scales_nbytes) / sizeof(F) + number * rules.dim + lane;
  }
  // Of each lane the value of the lane `dim` before it.
  CC_HD Word before(Word v) const {
    if constexpr (sizeof(Word) == 4) return __shfl_sync(full_warp, v, int(below));
    else
      return __shfl_sync(full_warp, uint32_t(v), int(below)) |
             uint64_t(__shfl_sync(full_warp, uint32_t(v >> 32), int(below))) << 32;
  }
  CC_HD bool begins() const { return lane < rules.dim; }
};

// A value of the tile; behind the last one, the last `dim` again and again.
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

template <class T>
CC_HD typename BfpTile<T>::Word bfp_code(const BfpTile<T>& tile, typename T::Sum x, typename T::Sum inverse,
                                         uint32_t key, uint32_t j) {
  typename T::Sum y = multiply(x, inverse);
  if (tile.rules.stochastic) y = bfp::round_by_hash(y, key, j);
  return bfp_integer(y);
}

template <class T>
CC_HD void bfp_encode_tile(const Job& job, const BfpTile<T>& tile, typename BfpTile<T>::Word& top,
                           typename BfpTile<T>::Word& top_step, Checksum& sum) {
  using F = typename T::Sum;
  using Word = typename BfpTile<T>::Word;
  const bool begins = tile.begins();
  F p = begins ? bfp_load(job, tile, tile.lane) : F(0);
  auto words = reinterpret_cast<Word*>(job.dst);
  if (begins) {
    words[tile.base_word()] = bit_cast<Word>(p);
    sum.add(bit_cast<Word>(p), tile.base_word());
  }
  BfpWriter<T> writer{words, tile.first_word()};
  uint32_t scales = 0;
  for (uint32_t b = 0; b < tile.blocks; b++) {
    const F x0 = bfp_load(job, tile, b * bfp::block + tile.lane);
    const F x1 = bfp_load(job, tile, b * bfp::block + bfp::row + tile.lane);
    const Word u0 = bit_cast<Word>(x0), u1 = bit_cast<Word>(x1), v0 = tile.before(u0), v1 = tile.before(u1);
    const F before0 = begins ? p : bit_cast<F>(v0), before1 = bit_cast<F>(begins ? v0 : v1);
    const Word m0 = u0 & tile.magnitude, m1 = u1 & tile.magnitude;
    const Word d0 = bit_cast<Word>(subtract(x0, before0)) & tile.magnitude;
    const Word d1 = bit_cast<Word>(subtract(x1, before1)) & tile.magnitude;
    const Word most = warp_max(m0 > m1 ? m0 : m1), change = warp_max(d0 > d1 ? d0 : d1);
    const auto scale = bfp::choose<F, F, Word>(tile.rules, most, change);
    const uint32_t code = uint32_t(scale.code);
    top = most > top ? most : top;
    const Word step = most ? bit_cast<Word>(scale.step) : 0;
    top_step = step > top_step ? step : top_step;
    if (tile.lane == b / 2) scales |= code << 16 * (b % 2);
    const uint64_t block = tile.number * tile.most_blocks + b;
    const uint32_t key = tile.rules.stochastic ? blockscale_key(job.params[1], code, block) : 0;
    const Word q0 = bfp_code(tile, x0, scale.inverse, key, tile.lane);
    const Word q1 = bfp_code(tile, x1, scale.inverse, key, bfp::row + tile.lane);
    const Word start = bfp_integer(multiply(p, scale.inverse));
    const Word w0 = tile.before(q0), w1 = tile.before(q1);
    writer.put(tile.rules.bits, code & 1 ? q0 - (begins ? start : w0) : q0, sum);
    writer.put(tile.rules.bits, code & 1 ? q1 - (begins ? w0 : w1) : q1, sum);
    p = multiply(bfp_value(w1), scale.step);  // counts where a block begins
  }
  if (writer.filled) writer.flush(sum);
  if (tile.has_scales()) {
    reinterpret_cast<uint32_t*>(job.dst)[tile.scale_word()] = scales;
    sum.add(scales, tile.scale_word());
  }
}

template <class T>
CC_HD void bfp_encode(const Job& job) {
  using F = typename T::Sum;
  using Word = typename BfpTile<T>::Word;
  const bfp::Rules<F> rules(job.params);
  const bfp::Layout<F> layout(job.n, rules);
  const bool fits = rules.valid && layout.nbytes <= job.nbytes;
  Word top = 0, top_step = 0;
  Checksum sum(job);
  for (uint64_t t = warp_id(); fits && t < layout.tiles; t += warp_count())
    bfp_encode_tile<T>(job, BfpTile<T>(job, rules, layout, t), top, top_step, sum);
  note_max(&job.result->extent[0], top);
  note_max(&job.result->extent[1], top_step);
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

template <class T>
struct BfpReader {
  using Word = typename BfpTile<T>::Word;
  const Word* from;
  uint64_t index;
  uint32_t rows;  // that are left
  Word word = 0;
  uint32_t at = 0;

  CC_HD void next(Checksum& sum) {
    word = 0;
    if (rows == 0) return;
    word = from[index];
    sum.add(word, index);
    index += bfp::row, rows--;
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

template <class T, bool adding>
CC_HD void bfp_deliver(const Job& job, uint64_t i, typename T::Sum v) {
  if (i >= job.n) return;
  if constexpr (sizeof(typename T::Stored) == 2) {
    constexpr float most = float(T::most);
    if (T::infinity == F16::infinity) v = v > most ? most : v < -most ? -most : v;
    v = T::round(T::widen(v));
  }
  deliver<T, adding>(job.dst, i, v);
}

template <class T, bool adding>
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
  bool bad = (base & tile.magnitude) >= bfp::Form<F>::refused;
  for (uint32_t k = 0; k < 2; k++)
    bad = bad || (2 * tile.lane + k < tile.blocks && !bfp::sound<F>(scales >> 16 * k & 0xffff));
  const bool any = __ballot_sync(full_warp, bad);
  if (any && tile.lane == 0) atomicOr(&job.result->bad, 1u);
  BfpReader<T> reader{words, tile.first_word(), tile.rows()};
  reader.next(sum);
  F p = bit_cast<F>(base);
  for (uint32_t b = 0; b < tile.blocks; b++) {
    const uint32_t code = __shfl_sync(full_warp, scales, int(b / 2)) >> 16 * (b % 2) & 0xffff;
    const F step = bfp::step_of<F>(code);
    Word q0 = reader.take(tile.rules.bits, sum), q1 = reader.take(tile.rules.bits, sum);
    if (code & 1) {
      const F inverse = 1 / step;
      const Word start = bfp_integer(bfp::before_block(p, inverse));
      q0 += begins ? start : 0;
      for (uint32_t s = tile.rules.dim; s < bfp::row; s *= 2) q0 = add_from_below(q0, s);
      const Word carry = tile.before(q0);
      q1 += begins ? carry : 0;
      for (uint32_t s = tile.rules.dim; s < bfp::row; s *= 2) q1 = add_from_below(q1, s);
    }
    p = multiply(bfp_value(tile.before(q1)), step);
    const uint64_t i = tile.at + b * bfp::block + tile.lane;
    if (any) continue;
    bfp_deliver<T, adding>(job, i, multiply(bfp_value(q0), step));
    bfp_deliver<T, adding>(job, i + bfp::row, multiply(bfp_value(q1), step));
  }
}

template <class T, bool adding>
CC_HD void bfp_decode(const Job& job) {
  using F = typename T::Sum;
  const bfp::Rules<F> rules(job.params);
  const bfp::Layout<F> layout(job.n, rules);
  Checksum sum(job);
  for (uint64_t t = warp_id(); t < layout.tiles; t += warp_count())
    bfp_decode_tile<T, adding>(job, BfpTile<T>(job, rules, layout, t), sum);
  sum.note(job);
}

}  // namespace cuda
}  // namespace CC_LEVEL
}  // namespace compcoll
