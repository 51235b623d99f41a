// ZFP on the CPU: N blocks side by side through the transform, then block by block through the plane coder.
#include "../zfp_planes.h"
#include "table.h"
#include "zfp_tiles.h"

namespace compcoll {
namespace CC_LEVEL {
namespace zfp {

// What the codec promises depends on the data only through these three.
template <class L>
struct Extent {
  L largest = {};   // magnitude, as a bit pattern
  L smallest = {};  // of the largest magnitudes of the blocks that are not zero, minus 1; complemented
  L key = {};       // E + K + 2 W of the block with the largest error

  void add_magnitude(L magnitude) {
    largest = magnitude > largest ? magnitude : largest;
    L complement = ~(magnitude - 1);
    smallest = complement > smallest ? complement : smallest;
  }
};

// A status, or 0 and the error bound.
template <class E, int D, class L>
int64_t judge(const Extent<L>& extent, uint64_t key, double* bound) {
  using W = typename E::Word;
  using F = Format<W>;
  W largest = 0, smallest = 0;
  for (int i = 0; i < lanes<L>::n; i++) {
    largest = extent.largest[i] > largest ? extent.largest[i] : largest;
    smallest = extent.smallest[i] > smallest ? extent.smallest[i] : smallest;
  }
  constexpr W infinity = W(2 * F::bias + 1) << F::mantissa;
  if (largest >= infinity) return NONFINITE;
  *bound = 0;
  if (!largest) return 0;
  int e = exponent(largest), e_min = exponent(W(~smallest + 1));
  // Below, the scale overflows. Above, a decoded value or the bound could, by a block that wraps around.
  if (e_min < F::bits - 2 || e >= 2 * F::bias - 1) return UNREPRESENTABLE;
  using B = Bound<D, W>;
  // Rounding of this arithmetic itself is far below one part in 2^40.
  double error = __builtin_ldexp(B::truncation, int(key) - F::bits + 2 - F::bias) +
                 __builtin_ldexp(B::slack, e - F::bits + 2 - F::bias);
  error *= 1 + 0x1p-40;
  double rounded = error + E::rounding(__builtin_ldexp(1, e - F::bias) + error);
  *bound = E::rounding(1) > 0 && 2 * error < rounded ? 2 * error : rounded;
  return 0;
}

template <class W, int D>
struct Block {
  static constexpr int size = 1 << 2 * D, bits = 8 * sizeof(W), N = vector_nbytes / sizeof(W);

  // Plane k of one lane, out of what to_planes left.
  static uint64_t plane(const W* a, int lane, int k) {
    if (size > bits) return a[k * N + lane] | uint64_t(a[(bits + k) % size * N + lane]) << (bits & 63);
    uint64_t v = a[k % size * N + lane] >> (k / size * size % bits);
    return low_bits(v, size);
  }

  static void set_plane(W* a, int lane, int k, uint64_t x) {
    if (size > bits) {
      a[k * N + lane] = W(x);
      a[(bits + k) % size * N + lane] = W(x >> (bits & 63));
    } else {
      a[k % size * N + lane] |= W(x) << (k / size * size % bits);
    }
  }
};

// 64 values of 64 bits and the plane that passes the end.
constexpr int block_words = 64 + 4;

inline void append(BitWriter& out, const uint64_t* words, int nbits) {
  for (; nbits >= 64; nbits -= 64) out.put(*words++, 64);
  if (nbits) out.put(low_bits(*words, nbits), nbits);
}

// nbits bits from bit `pos` of the payload, with zeros behind.
inline void extract(const uint8_t* payload, uint64_t pos, int nbits, uint64_t* words) {
  const uint8_t* p = payload + pos / 64 * 8;
  int shift = pos % 64, n = (nbits + 63) / 64;
  for (int i = 0; i < n; i++) {
    words[i] = load<uint64_t>(p + 8 * i) >> shift;
    if (shift && 64 * i + 64 - shift < nbits) words[i] |= load<uint64_t>(p + 8 * i + 8) << (64 - shift);
  }
  words[n - 1] = low_bits(words[n - 1], nbits - 64 * (n - 1));
  for (int i = 0; i < 3; i++) words[n + i] = 0;
}

// The stream's words go out through here, because dst has any alignment.
struct Output {
  uint8_t* dst;
  uint64_t words[block_words];
  BitWriter bits{words};

  void block(const uint64_t* block, int nbits) {
    append(bits, block, nbits);
    flush();
  }
  void flush() {
    size_t nbytes = 8 * (bits.word - words);
    memcpy(dst, words, nbytes);
    dst += nbytes;
    bits.word = words;
  }
  void finish() {
    if (bits.fill) bits.put(0, 64 - bits.fill);
    flush();
  }
};

template <class E, int D>
int64_t encode_array(const Grid& grid, int maxbits, const uint8_t* src, uint8_t* dst, double* bound) {
  using T = Tiles<E, D>;
  using L = typename T::L;
  using W = typename T::W;
  using F = Format<W>;
  using B = Block<W, D>;
  constexpr int N = T::N;
  T tiles{grid};
  Cursor at;
  Extent<L> extent;
  Output out{dst};
  uint64_t key = 0;
  for (uint64_t left = grid.count(); left;) {
    int count = left < N ? left : N;
    L a[B::size], x[B::size], magnitude = {};
    tiles.load(at, count, src, a);
    for (int i = 0; i < B::size; i++) {
      L m = a[i] & W(~W(0) >> 1);
      magnitude = m > magnitude ? m : magnitude;
    }
    extent.add_magnitude(magnitude);
    L e = exponent(magnitude), scale = quantise_scale(e);
    for (int i = 0; i < B::size; i++) a[i] = quantise(a[i], scale);
    transform_forward<D>(a);
    for (int i = 0; i < B::size; i++) x[i] = negabinary(a[order<D>(i)]);
    to_planes<D>(x);
    for (int lane = 0; lane < count; lane++) {
      uint64_t block[block_words] = {};
      if (magnitude[lane]) {
        BitWriter bits{block};
        bits.put(2 * uint64_t(e[lane]) + 1, F::header);
        auto plane = [&](int k) { return B::plane(reinterpret_cast<const W*>(x), lane, k); };
        int k = encode_planes<B::size>(bits, maxbits - F::header, F::bits, plane);
        if (bits.fill) *bits.word = bits.pending;
        if (k > Bound<D, W>::limit) k = Bound<D, W>::wrapped;
        key = key > e[lane] + k ? key : e[lane] + k;
      }
      out.block(block, maxbits);
    }
    at.advance(grid, count);
    left -= count;
  }
  out.finish();
  return judge<E, D>(extent, key, bound);
}

template <class E, int D, bool Accumulate>
void decode_array(const Grid& grid, int maxbits, const uint8_t* payload, uint8_t* dst) {
  using T = Tiles<E, D, Accumulate>;
  using L = typename T::L;
  using W = typename T::W;
  using F = Format<W>;
  using B = Block<W, D>;
  constexpr int N = T::N;
  T tiles{grid};
  Cursor at;
  uint64_t pos = 0;
  for (uint64_t left = grid.count(); left;) {
    int count = left < N ? left : N;
    L a[B::size], x[B::size] = {}, e = {};
    for (int lane = 0; lane < count; lane++, pos += maxbits) {
      uint64_t words[block_words];
      extract(payload, pos, maxbits, words);
      if (!(words[0] & 1)) continue;
      e[lane] = low_bits(words[0], F::header) >> 1;
      auto deposit = [&](int k, uint64_t p) { B::set_plane(reinterpret_cast<W*>(x), lane, k, p); };
      decode_planes<B::size>(words, F::header, maxbits, F::bits, deposit);
    }
    to_planes<D>(x);
    for (int i = 0; i < B::size; i++) a[order<D>(i)] = from_negabinary(x[i]);
    transform_inverse<D>(a);
    L scale = dequantise_scale(e);
    for (int i = 0; i < B::size; i++) a[i] = dequantise(a[i], scale);
    tiles.store(at, count, a, dst);
    at.advance(grid, count);
    left -= count;
  }
}

// -- dispatch

// Calls run(element, dimensions) with types in place of the numbers; UNSUPPORTED where there are none.
template <class Run>
int64_t with_types(const Args& args, Run run) {
  auto with_ndim = [&](auto element) -> int64_t {
    switch (args.ndim) {
      case 1: return run(element, std::integral_constant<int, 1>());
      case 2: return run(element, std::integral_constant<int, 2>());
      case 3: return run(element, std::integral_constant<int, 3>());
      default: return UNSUPPORTED;
    }
  };
  switch (args.dtype) {
    case FLOAT16: return with_ndim(Float16());
    case BFLOAT16: return with_ndim(BFloat16());
    case FLOAT32: case COMPLEX64: return with_ndim(Float32());
    case FLOAT64: case COMPLEX128: return with_ndim(Float64());
    default: return UNSUPPORTED;
  }
}

template <class W>
bool sound(const Args& args) {
  uint64_t values = uint64_t(1) << 2 * args.ndim;
  return args.params[0] >= Format<W>::header && args.params[0] <= values * Format<W>::bits && !args.params[1];
}

uint64_t values_per_element(const Args& args) { return args.dtype >= COMPLEX64 ? 2 : 1; }

uint64_t payload_nbytes(const Grid& grid, uint64_t maxbits) { return (grid.count() * maxbits + 63) / 64 * 8; }

int64_t encode(Args* args, const void* src, void* dst) {
  Grid grid(*args, values_per_element(*args));
  return with_types(*args, [&](auto element, auto ndim) -> int64_t {
    using E = decltype(element);
    if (!sound<typename E::Word>(*args)) return UNSUPPORTED;
    uint64_t nbytes = payload_nbytes(grid, args->params[0]);
    if (nbytes > args->capacity) return TOO_LARGE;
    int64_t status = encode_array<E, decltype(ndim)::value>(
        grid, args->params[0], static_cast<const uint8_t*>(src), static_cast<uint8_t*>(dst), &args->bound);
    return status ? status : int64_t(nbytes);
  });
}

template <bool Accumulate>
int64_t decode(const Args* args, const void* payload, uint64_t nbytes, void* dst) {
  Grid grid(*args, values_per_element(*args));
  return with_types(*args, [&](auto element, auto ndim) -> int64_t {
    using E = decltype(element);
    if (!sound<typename E::Word>(*args) || nbytes != payload_nbytes(grid, args->params[0])) return BAD_STREAM;
    if (Accumulate && args->acc_dtype != (sizeof(typename E::Stored) == 2 ? uint32_t(FLOAT32) : args->dtype))
      return UNSUPPORTED;
    decode_array<E, decltype(ndim)::value, Accumulate>(
        grid, args->params[0], static_cast<const uint8_t*>(payload), static_cast<uint8_t*>(dst));
    return 0;
  });
}

}  // namespace zfp

extern const Codec zfp_codec = {"zfp", zfp::encode, zfp::decode<false>, zfp::decode<true>, nullptr};

}  // namespace CC_LEVEL
}  // namespace compcoll
