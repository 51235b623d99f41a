// bfp on the CPU. The steps of a tile's blocks depend on each other in order. They are therefore chosen for a
// few tiles in parallel, between a pass that finds magnitudes and differences and a pass that writes codes.
#include <cstring>

#include "bfp_lanes.h"
#include "past_cache.h"
#include "prefetch.h"
#include "table.h"

namespace compcoll {
namespace CC_LEVEL {
namespace bfp {
// csrc/cpu/bfp_decode.cpp
int64_t decode(const Args* args, const void* payload, uint64_t nbytes, void* dst);
int64_t decode_add(const Args* args, const void* payload, uint64_t nbytes, void* dst);

namespace {

// Pads the last tile after its n values.
template <class F>
inline void fill_up(F* x, uint64_t n, uint64_t end, uint32_t dim) {
  for (uint64_t i = n; i < end; i++) x[i] = i >= dim ? x[i - dim] : 0;
}

// Values as F: float16 and bfloat16 are widened.
template <class T, class F>
inline void widen(const char* src, uint64_t n, F* x) {
  if constexpr (sizeof(T) == sizeof(F)) {
    memcpy(x, src, n * sizeof(F));
  } else {
    constexpr int pair = 2 * reals;
    uint64_t i = 0;
    for (; i + pair <= n; i += pair) store(x + i, Real<T>::load_pair(src + i * sizeof(T)));
    if (i == n) return;
    char rest[pair * sizeof(T)] = {};
    memcpy(rest, src + i * sizeof(T), (n - i) * sizeof(T));
    const Pair v = Real<T>::load_pair(rest);
    memcpy(x + i, &v, (n - i) * sizeof(F));
  }
}

template <class T, class F>
inline typename Form<F>::Word largest_magnitude(const char* src, uint64_t n) {
  using Bits = typename std::conditional<sizeof(T) == 2, int16_t, typename Form<F>::Signed>::type;
  const Bits most = largest_word<Bits>(src, n);
  F wide;
  widen<T, F>(reinterpret_cast<const char*>(&most), 1, &wide);
  return bit_cast<typename Form<F>::Word>(wide);
}

template <class F>
struct Tiles {  // encoded together
  using X = Vectors<F>;
  using Word = typename X::Word;
  using Signed = typename X::Signed;
  static constexpr int G = X::together, blocks = tile_blocks<F>;
  const char* x[G];
  alignas(64) F staged[G][max_dim + tile<F>];
  alignas(64) Signed most[blocks][G][G], change[blocks][G][G];
  alignas(64) F inverse[blocks][G];
  alignas(64) Signed before[blocks][max_dim][G];
  alignas(64) uint16_t code[blocks][G];
  uint32_t key[blocks][G];
};

template <class T>
class Encoder {
  using F = typename Real<T>::real;
  using X = Vectors<F>;
  using V = typename X::V;
  using U = typename X::U;
  using S = typename X::S;
  using Word = typename X::Word;
  using Signed = typename X::Signed;
  static constexpr int n_lanes = X::n, G = X::together;
  static constexpr Word magnitude = Word(-1) >> 1;
  static constexpr auto all = std::make_integer_sequence<int, n_lanes>();
  using Copy = PastCache<tile<F> * sizeof(T)>;

 public:
  // The decoded values are written to `values`, which may be src or null.
  Encoder(Args* args, const char* src, uint8_t* dst, char* values, uint64_t n)
      : args_(args), src_(src), dst_(dst), values_(values), n_(n), rules_(args->params), layout_(n, rules_) {}

  int64_t run() {
    if (!rules_.valid) return UNSUPPORTED;
    if (layout_.nbytes > args_->capacity || layout_.nbytes > args_->nbytes()) return TOO_LARGE;
    if (values_ == src_)
      if (const int64_t status = refusal(rules_, largest_magnitude<T, F>(src_, n_))) return status;
    if (values_ && values_ != src_ && args_->past_cache) encode_past_cache();
    else encode();
    if (const int64_t status = refusal(rules_, top_)) return status;
    const double rounding = sizeof(T) == sizeof(F) ? 0 : Real<T>::unit,
                 tiny = sizeof(T) == sizeof(F) ? 0 : Real<T>::tiny;
    args_->bound = bound(rules_, bit_cast<F>(top_step_), bit_cast<F>(top_), rounding, tiny);
    return layout_.nbytes;
  }

 private:
  void encode_past_cache() {
    Copy copy(values_);
    copy_ = &copy;
    encode();
    copy.finish();
    written_past_cache();
    copy_ = nullptr;
  }

  // Encodes all tiles, or those up to the first non-finite value.
  void encode() {
    for (uint32_t i = 0; i < block; i++) inside_[i] = i < rules_.dim ? 0 : magnitude;
    if (layout_.blocks) memset(dst_ + layout_.codes_nbytes + layout_.scales_nbytes - sizeof(F), 0, sizeof(F));
    for (uint64_t t = 0; t < layout_.tiles; t += G) {
      const int count = int(layout_.tiles - t < uint64_t(G) ? layout_.tiles - t : G);
      const int blocks = blocks_of(t);  // the last tile may have fewer
      if (t + G >= layout_.tiles) {
        memset(tiles_.most, 0, blocks * sizeof *tiles_.most);
        memset(tiles_.change, 0, blocks * sizeof *tiles_.change);
      }
      for (int g = 0; g < count; g++) find(t + g, g, blocks);
      for (int g = count; g < G; g++) tiles_.x[g] = tiles_.x[0];
      if (rules_.dim == 1) choose_steps<1>(t, count, blocks);
      else if (rules_.dim == 2) choose_steps<2>(t, count, blocks);
      else choose_steps<0>(t, count, blocks);
      if (top_ >= Form<F>::infinity) return;
      for (int g = 0; g < count; g++) {
        if (values_) rules_.stochastic ? code<true, true>(t + g, g) : code<true, false>(t + g, g);
        else rules_.stochastic ? code<false, true>(t + g, g) : code<false, false>(t + g, g);
      }
    }
  }

  int blocks_of(uint64_t t) const {
    const uint64_t blocks = layout_.blocks - t * tile_blocks<F>;
    return int(blocks < tile_blocks<F> ? blocks : tile_blocks<F>);
  }

  // Finds the largest magnitudes of a tile's blocks, and the largest differences inside them. The first
  // `most` blocks get steps.
  void find(uint64_t t, int g, int most) {
    const uint64_t at = t * tile<F>, rest = n_ - at;
    const char* x = src_ + at * sizeof(T);
    const bool last = rest < tile<F>;
    const int blocks = blocks_of(t);
    if (sizeof(T) < sizeof(F) || last || t == 0) {
      F* values = tiles_.staged[g] + max_dim;
      widen<T, F>(x, last ? rest : tile<F>, values);
      if (last) {
        fill_up(values, rest, blocks * block, rules_.dim);
        memset(values + blocks * block, 0, (most - blocks) * block * sizeof(F));
      }
      memset(tiles_.staged[g], 0, max_dim * sizeof(F));
      x = reinterpret_cast<const char*>(values);
    }
    tiles_.x[g] = x;
    char* bases = reinterpret_cast<char*>(dst_) + layout_.codes_nbytes + layout_.scales_nbytes;
    memcpy(bases + t * rules_.dim * sizeof(F), x, rules_.dim * sizeof(F));
    const uint64_t back = rules_.dim * sizeof(F);
    for (int b = 0; b < blocks; b++, x += block * sizeof(F)) {
      S most = {}, change = {};
      fetch_ahead<false>(x, block * sizeof(F));
      for (int i = 0; i < int(block); i += n_lanes) {
        const V v = load<V>(x + i * sizeof(F)), u = load<V>(x + i * sizeof(F) - back);
        most = larger(most, S((U)v & magnitude));
        change = larger(change, S((U)(v - u) & load<U>(inside_ + i)));
      }
      fold(most, tiles_.most[b][g]);
      fold(change, tiles_.change[b][g]);
    }
  }
  // Reduces v to one lane per tile.
  static void fold(S v, Signed* to) {
    if constexpr (n_lanes > G) {
      using H = vec<Signed, G>;
      H halves[2];
      memcpy(halves, &v, sizeof v);
      store(to, larger(halves[0], halves[1]));
    } else {
      store(to, v);
    }
  }

  // Steps of all blocks, one after another, for several tiles at once.
  template <int D>
  void choose_steps(uint64_t t, int count, int blocks) {
    using A = typename X::Together;
    using UA = typename X::TogetherU;
    using SA = typename X::TogetherS;
    const int dim = D ? D : int(rules_.dim);
    A p[D ? D : max_dim];
    const auto gather = [&](int at) {
      A v;
      for (int g = 0; g < G; g++) v[g] = load<F>(tiles_.x[g] + at * sizeof(F));
      return v;
    };
    for (int j = 0; j < dim; j++) p[j] = gather(j);
    UA top = {}, top_step = {};
    for (int b = 0; b < blocks; b++) {
      SA v[G];
      memcpy(v, tiles_.most[b], sizeof v);
      const UA most = (UA)largest_lanes<SA, G>(v);
      memcpy(v, tiles_.change[b], sizeof v);
      SA change = largest_lanes<SA, G>(v);
      for (int j = 0; j < dim; j++)
        change = larger(change, SA((UA)(gather(b * block + j) - p[j]) & magnitude));
      const auto scale = choose<F, A, UA>(rules_, most, (UA)change);
      top = most > top ? most : top;
      const UA step = most > 0 ? (UA)scale.step : UA{};
      top_step = step > top_step ? step : top_step;
      store(tiles_.inverse[b], scale.inverse);
      for (int g = 0; g < G; g++) {
        tiles_.code[b][g] = uint16_t(scale.code[g]);
        if (rules_.stochastic)
          tiles_.key[b][g] =
              blockscale_key(args_->params[1], uint32_t(scale.code[g]), (t + g) * tile_blocks<F> + b);
      }
      for (int j = 0; j < dim; j++) {
        store(tiles_.before[b][j], to_integers(p[j] * scale.inverse));
        const int at = block - dim + j;
        A y = gather(b * block + at) * scale.inverse;
        if (rules_.stochastic)
          for (int g = 0; g < G; g++) y[g] = round_by_hash<F>(y[g], tiles_.key[b][g], at);
        p[j] = to_values(to_integers(y)) * scale.step;
      }
    }
    for (int g = 0; g < count; g++) {
      top_ = top[g] > top_ ? top[g] : top_;
      top_step_ = top_step[g] > top_step_ ? top_step[g] : top_step_;
    }
  }

  template <bool giving, bool stochastic>
  void code(uint64_t t, int g) {
    const uint64_t rest = n_ - t * tile<F>;
    const bool last = rest < tile<F>;
    const int blocks = blocks_of(t);
    uint8_t* scales = dst_ + layout_.codes_nbytes + t * tile_blocks<F> * 2;
    alignas(64) char some[tile<F> * sizeof(T)];
    char* values = !giving || last ? some : values_ + t * tile<F> * sizeof(T);
    if (giving && copy_) values = copy_->room();
    for (int b = 0; b < blocks; b++) {
      const uint32_t code = tiles_.code[b][g];
      if (giving && copy_) copy_->until(b * block * sizeof(T));
      store(scales + 2 * b, uint16_t(code));
      char* into = values + b * block * sizeof(T);
      if (!(code & 1)) {
        code_block<0, giving, stochastic>(g, b, into);
      } else if (rules_.dim == 1) {
        code_block<1, giving, stochastic>(g, b, into);
      } else if (rules_.dim == 2) {
        code_block<2, giving, stochastic>(g, b, into);
      } else {
        code_block<0, giving, stochastic>(g, b, into);
        Word* q = codes_ + b * block;
        for (uint32_t i = block; i-- > rules_.dim;) q[i] -= q[i - rules_.dim];
        for (uint32_t i = 0; i < rules_.dim; i++) q[i] -= Word(tiles_.before[b][i][g]);
      }
    }
    if (giving && copy_) copy_->made((last ? rest : tile<F>)*sizeof(T));
    else if (giving && last) memcpy(values_ + t * tile<F> * sizeof(T), some, rest * sizeof(T));
    char* to = reinterpret_cast<char*>(dst_) + t * rules_.bits * row * sizeof(F);
    pack<U>(codes_, int(rules_.bits), 2 * blocks, to);
  }

  // Codes values, or their differences to the values D before.
  template <int D, bool giving, bool stochastic>
  CC_HD void code_block(int g, int b, char* into) {
    const F* x = reinterpret_cast<const F*>(tiles_.x[g]) + b * block;
    const V inverse = tiles_.inverse[b][g] - V{};
    const F step = step_of<F>(tiles_.code[b][g]);
    S before = {};
    for (int j = 0; j < D; j++) before[n_lanes - D + j] = tiles_.before[b][j][g];
    for (int i = 0; i < int(block); i += n_lanes) {
      V y = load<V>(x + i) * inverse;
      if (stochastic) y = round_by_hash<F>(y, tiles_.key[b][g], i, all);
      const S q = to_integers(y);
      if constexpr (D > 0) store(codes_ + b * block + i, q - shifted<D>(before, q, all));
      else store(codes_ + b * block + i, q);
      if (giving) put<T, false>(into, i, to_values(q) * step);
      before = q;
    }
  }

  Args* args_;
  const char* src_;
  uint8_t* dst_;
  char* values_;
  const uint64_t n_;
  const Rules<F> rules_;
  const Layout<F> layout_;
  Copy* copy_ = nullptr;  // of the values, past the cache
  Word top_ = 0, top_step_ = 0;
  alignas(64) Word inside_[block];
  alignas(64) Word codes_[tile<F>];
  Tiles<F> tiles_;
};

struct Encode {
  Args* args;
  const char* src;
  uint8_t* dst;
  char* values;

  template <class T>
  int64_t run(uint64_t n) const {
    return Encoder<T>(args, src, dst, values, n).run();
  }
};

int64_t reconstruct(Args* args, const void* src, void* dst, void* values) {
  return with_real(args, Encode{args, static_cast<const char*>(src), static_cast<uint8_t*>(dst),
                                static_cast<char*>(values)});
}

int64_t encode(Args* args, const void* src, void* dst) { return reconstruct(args, src, dst, nullptr); }

}  // namespace
}  // namespace bfp

extern const Codec bfp_codec = {"bfp", bfp::encode, bfp::decode, bfp::decode_add, nullptr, bfp::reconstruct};

}  // namespace CC_LEVEL
}  // namespace compcoll
