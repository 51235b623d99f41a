// bfp's decoder on the CPU. The last values of a block, on which the next block depends, stay in registers,
// and sums within a block do not wait for them.
#include <cstring>

#include "bfp_lanes.h"
#include "past_cache.h"
#include "prefetch.h"

namespace compcoll {
namespace CC_LEVEL {
namespace bfp {
namespace {

// The header's data on a tile's blocks.
template <class F>
struct Steps {
  static constexpr int most = tile_blocks<F>;
  alignas(64) uint16_t code[most];
  alignas(64) F step[most], inverse[most];

  // True if an encoder can have written these scales.
  bool read(const uint8_t* scales, int blocks) {
    using X = Vectors<F>;
    using U = typename X::U;
    for (int b = 0; b < most; b++) code[b] = uint16_t(Form<F>::lowest >> Form<F>::shift << 1);
    memcpy(code, scales, blocks * sizeof *code);
    U least = U{} + Form<F>::highest, largest = {};
    for (int b = 0; b < most; b += X::n) {
      const U codes = __builtin_convertvector(load<vec<uint16_t, X::n>>(code + b), U);
      const U bits = ((codes >> 1) + Form<F>::bias) << Form<F>::shift;
      least = bits < least ? bits : least;
      largest = bits > largest ? bits : largest;
      store(step + b, bits);
      store(inverse + b, F(1) / bit_cast<typename X::V>(bits));
    }
    bool good = true;
    for (int i = 0; i < X::n; i++) good &= least[i] >= Form<F>::lowest && largest[i] <= Form<F>::highest;
    return good;
  }
  bool differs(int b) const { return code[b] & 1; }
  int differing(int blocks) const {
    int count = 0;
    for (int b = 0; b < blocks; b++) count += code[b] & 1;
    return count;
  }
};

// D is the distance of the predicting value if it is 1 or 2, else 0.
template <class T, bool adding>
class Decoder {
  using F = typename Real<T>::real;
  using X = Vectors<F>;
  using V = typename X::V;
  using S = typename X::S;
  using U = typename X::U;
  using Word = typename X::Word;
  using Signed = typename X::Signed;
  static constexpr int n_lanes = X::n, element = adding ? sizeof(F) : sizeof(T);
  static constexpr auto all = std::make_integer_sequence<int, n_lanes>();
  using Copy = PastCache<tile<F> * element>;

 public:
  Decoder(const Args* args, const uint8_t* payload, char* dst, uint64_t n)
      : payload_(payload),
        dst_(dst),
        n_(n),
        past_cache_(args->past_cache && !adding),
        rules_(args->params),
        layout_(n, rules_) {}

  int64_t run(uint64_t nbytes) {
    if (!rules_.valid || nbytes != layout_.nbytes) return BAD_STREAM;
    halves_ = sizeof(F) == 4 && rules_.bits <= most_half_bits;
    bool good;
    if (rules_.dim == 1) good = decode_all<1>();
    else if (rules_.dim == 2) good = decode_all<2>();
    else good = decode_all<0>();
    return good ? 0 : BAD_STREAM;
  }

 private:
  // Separate from decoding past the cache, because the compiler optimises a combined loop less well.
  template <int D>
  bool decode() {
    for (uint64_t t = 0; t < layout_.tiles; t++) {
      const uint64_t at = t * tile<F>, n = n_ - at < tile<F> ? n_ - at : tile<F>;
      char* d = dst_ + at * element;
      if (n == tile<F>) {
        if (!decode_tile<D>(t, tile_blocks<F>, d, nullptr)) return false;
        continue;
      }
      alignas(64) char values[tile<F> * element];
      if (adding) memcpy(values, d, n * element);
      if (!decode_tile<D>(t, int((n + block - 1) / block), values, nullptr)) return false;
      memcpy(d, values, n * element);
    }
    return true;
  }
  template <int D>
  bool decode_past_cache() {
    Copy copy(dst_);
    bool good = true;
    for (uint64_t t = 0; good && t < layout_.tiles; t++) {
      const uint64_t rest = n_ - t * tile<F>, n = rest < tile<F> ? rest : tile<F>;
      good = decode_tile<D>(t, int((n + block - 1) / block), copy.room(), &copy);
      if (good) copy.made(n * element);
    }
    copy.finish();
    written_past_cache();
    return good;
  }
  template <int D>
  bool decode_all() {
    return past_cache_ ? decode_past_cache<D>() : decode<D>();
  }

  // Also advances `copy`, unless it is null.
  template <int D>
  bool decode_tile(uint64_t t, int blocks, char* d, Copy* copy) {
    const uint8_t* scales = payload_ + layout_.codes_nbytes;
    const uint8_t* bases = scales + layout_.scales_nbytes + t * rules_.dim * sizeof(F);
    const char* words = reinterpret_cast<const char*>(payload_) + t * rules_.bits * row * sizeof(F);
    bool good = steps_.read(scales + t * tile_blocks<F> * 2, blocks);
    memcpy(before_, bases, rules_.dim * sizeof(F));
    for (uint32_t j = 0; j < rules_.dim; j++)
      good &= (bit_cast<Word>(before_[j]) & Word(-1) >> 1) < Form<F>::refused;
    if (!good) return false;
    if constexpr (D > 0 && sizeof(F) == 4) {
      if (halves_ && 2 * steps_.differing(blocks) >= blocks) {
        unpack_halves<U>(words, int(rules_.bits), blocks, codes_);
        each_block<D, true>(blocks, d, copy);
        return true;
      }
    }
    unpack<U>(words, int(rules_.bits), 2 * blocks, codes_);
    each_block<D, false>(blocks, d, copy);
    return true;
  }

  template <int D, bool halves>
  void each_block(int blocks, char* d, Copy* copy) {
    V p = {};  // the last D values, repeated
    if constexpr (D > 0)
      for (int i = 0; i < n_lanes; i++) p[i] = before_[i % D];
    for (int b = 0; b < blocks; b++) {
      char* to = d + b * block * element;
      if (!copy) fetch_ahead<true>(to, block * element);
      else copy->until(b * block * element);
      if constexpr (D == 0) any_block(b, to);
      else if constexpr (halves) p = halves_of_block<D>(b, to, p);
      else p = words_of_block<D>(b, to, p);
    }
  }

  static CC_HD S start_of(V p, V inverse) { return to_integers(clamped(p * inverse, Form<F>::range)); }

  template <int D>
  CC_HD V words_of_block(int b, char* d, V p) {
    const V step = steps_.step[b] - V{};
    const Word* codes = codes_ + b * block;
    if (!steps_.differs(b)) {
      for (int i = 0; i < int(block); i += n_lanes)
        put<T, adding>(d, i, to_values(load<S>(codes + i)) * step);
      return to_values(last<D>(load<S>(codes + block - n_lanes), all)) * step;
    }
    U before = (U)start_of(p, steps_.inverse[b] - V{});
    for (int i = 0; i < int(block); i += n_lanes) {
      const U own = prefix<D, U>(load<U>(codes + i), all);
      put<T, adding>(d, i, to_values((S)(own + before)) * step);
      before += last<D>(own, all);
    }
    return to_values((S)before) * step;
  }

  template <int D>
  CC_HD V halves_of_block(int b, char* d, V p) {
    using H = vec<uint16_t, 2 * n_lanes>;
    constexpr int count = row / n_lanes;
    const V step = steps_.step[b] - V{};
    U codes[count];
    for (int k = 0; k < count; k++) codes[k] = load<U>(codes_ + b * row + k * n_lanes);
    if (!steps_.differs(b)) {
      for (int k = 0; k < count; k++) {
        put<T, adding>(d, k * n_lanes, to_values((S)(codes[k] << 16) >> 16) * step);
        put<T, adding>(d, row + k * n_lanes, to_values((S)codes[k] >> 16) * step);
      }
      return to_values(last<D>((S)codes[count - 1] >> 16, all)) * step;
    }
    H sums[count], total = {};
    for (int k = 0; k < count; k++) {
      sums[k] = (H)prefix<D, H>(codes[k], all) + total;
      total = (H)last<D>((U)sums[k], all);
    }
    // The sum of the first row precedes the second row; adding 2^15 makes all sums positive.
    const U first = (U)total << 16;
    const H front = (H)(first ^ 0x80008000u);
    const S start = start_of(p, steps_.inverse[b] - V{});
    const U below = (U)start - 0x8000;
    for (int k = 0; k < count; k++) {
      const U sum = (U)(sums[k] + front);
      put<T, adding>(d, k * n_lanes, to_values((S)((sum & 0xffff) + below)) * step);
      put<T, adding>(d, row + k * n_lanes, to_values((S)((sum >> 16) + below)) * step);
    }
    return to_values(start + ((S)(U)(total + (H)first) >> 16)) * step;
  }

  void any_block(int b, char* d) {
    Word* q = codes_ + b * block;
    const uint32_t dim = rules_.dim;
    const F step = steps_.step[b];
    if (steps_.differs(b)) {
      for (uint32_t j = 0; j < dim; j++)
        q[j] += Word(to_integers(before_block(before_[j], steps_.inverse[b])));
      for (uint32_t i = dim; i < block; i++) q[i] += q[i - dim];
    }
    for (uint32_t j = 0; j < dim; j++) before_[j] = to_values(Signed(q[block - dim + j])) * step;
    put_block<T, adding>(d, q, step);
  }

  const uint8_t* payload_;
  char* dst_;
  const uint64_t n_;
  const bool past_cache_;
  const Rules<F> rules_;
  const Layout<F> layout_;
  bool halves_;  // codes of differences are summed in 16 bits
  F before_[max_dim];
  Steps<F> steps_;
  alignas(64) Word codes_[tile<F>];
};

template <bool adding>
struct Decode {
  const Args* args;
  const uint8_t* payload;
  uint64_t nbytes;
  char* dst;

  template <class T>
  int64_t run(uint64_t n) const {
    return Decoder<T, adding>(args, payload, dst, n).run(nbytes);
  }
};

template <bool adding>
int64_t decode_as(const Args* args, const void* payload, uint64_t nbytes, void* dst) {
  if (adding && !accumulates(args)) return UNSUPPORTED;
  return with_real(
      args, Decode<adding>{args, static_cast<const uint8_t*>(payload), nbytes, static_cast<char*>(dst)});
}

}  // namespace

int64_t decode(const Args* args, const void* payload, uint64_t nbytes, void* dst) {
  return decode_as<false>(args, payload, nbytes, dst);
}
int64_t decode_add(const Args* args, const void* payload, uint64_t nbytes, void* dst) {
  return decode_as<true>(args, payload, nbytes, dst);
}

}  // namespace bfp
}  // namespace CC_LEVEL
}  // namespace compcoll
