// int8, int4 and fp8 on the CPU: a block's codes are 32-bit words in the first-level cache, between the loop
// that computes them and the loop that packs them.
#include <cstring>
#include <type_traits>

#include "../blockscale.h"
#include "prefetch.h"
#include "real.h"
#include "table.h"

namespace compcoll {
namespace CC_LEVEL {
namespace {

using Lanes = vec<uint32_t, reals>;
template <class T> using Value = typename Real<T>::value;
template <class T> using Scale = typename Real<T>::real;  // 16-bit floats have float scales

template <int largest>
struct Integer {
  static constexpr double limit = largest, error = 0.5 / largest;
  static Lanes nearest(Doubles v) { return (Lanes)to_integers(v); }
  static Lanes stochastic(Doubles v, Lanes hash) {
    // Strictly between -1/2 and 1/2, so integers do not change.
    return nearest(v + (to_doubles((Integers)hash) * 0x1p-32 + 0x1p-33));
  }
  static Doubles value(Lanes code) { return to_doubles((Integers)code); }
};

struct Int8 : Integer<127> {
  static uint64_t nbytes(uint64_t n) { return n; }
  static void pack(const uint32_t* code, int n, uint8_t* dst) {
    for (int i = 0; i < n; i++) dst[i] = uint8_t(code[i]);
  }
  static void unpack(const uint8_t* src, int n, uint32_t* code) {
    for (int i = 0; i < n; i++) code[i] = uint32_t(int8_t(src[i]));
  }
};

struct Int4 : Integer<7> {
  static uint64_t nbytes(uint64_t n) { return n / 2 + n % 2; }
  static void pack(const uint32_t* code, int n, uint8_t* dst) {
    for (int i = 0; i < n / 2; i++) dst[i] = uint8_t((code[2 * i] & 15) | code[2 * i + 1] << 4);
  }
  static void unpack(const uint8_t* src, int n, uint32_t* code) {
    for (int i = 0; i < n / 2; i++) {
      code[2 * i] = uint32_t(int32_t(uint32_t(src[i]) << 28) >> 28);
      code[2 * i + 1] = uint32_t(int8_t(src[i]) >> 4);
    }
  }
};

struct Fp8 {
  static constexpr double limit = 448, error = 16.0 / 448;
  static Lanes nearest(Doubles v) { return e4m3_nearest<Lanes>(to_floats(v)); }
  static Lanes stochastic(Doubles v, Lanes hash) { return e4m3_stochastic<Lanes>(to_floats(v), hash); }
  static Doubles value(Lanes code) { return to_doubles(e4m3_value<Floats>(code)); }
  static uint64_t nbytes(uint64_t n) { return n; }
  static void pack(const uint32_t* code, int n, uint8_t* dst) { Int8::pack(code, n, dst); }
  static void unpack(const uint8_t* src, int n, uint32_t* code) {
    for (int i = 0; i < n; i++) code[i] = src[i];
  }
};

// The largest magnitude of n values; infinite or NaN if any value is.
inline float largest(Float16, const char* x, int n) {
  return float16_to_float(uint16_t(largest_word<int16_t>(x, n)));
}
inline float largest(Bfloat16, const char* x, int n) {
  return bfloat16_to_float(uint16_t(largest_word<int16_t>(x, n)));
}
inline float largest(float, const char* x, int n) { return bit_cast<float>(largest_word<int32_t>(x, n)); }
inline double largest(double, const char* x, int n) { return bit_cast<double>(largest_word<int64_t>(x, n)); }

// True for a float64 scale so small that quotients by it would leave the normal range; such blocks are scaled
// first.
template <class T>
bool is_tiny(Scale<T> s) {
  return std::is_same<T, double>::value && s < 0x1p-500;
}

struct Layout {
  uint64_t block, blocks, scales_nbytes, nbytes;
  bool valid;

  template <class Q, class T>
  static Layout of(const Args* args, uint64_t n) {
    Layout l;
    l.block = args->params[0] & 0xffffffff;
    l.valid = blockscale_valid(l.block) && args->params[0] >> 33 == 0;
    l.blocks = l.valid ? n / l.block + (n % l.block != 0) : 0;
    l.scales_nbytes = l.blocks * sizeof(Scale<T>);
    l.nbytes = l.scales_nbytes + Q::nbytes(n);
    return l;
  }
};

template <class Q>
struct Encode {
  Args* args;
  const char* src;
  uint8_t* dst;

  template <class T>
  int64_t run(uint64_t n) const {
    const Layout layout = Layout::of<Q, T>(args, n);
    if (!layout.valid) return UNSUPPORTED;
    if (layout.nbytes > args->capacity || layout.nbytes > args->nbytes()) return TOO_LARGE;
    const bool stochastic = args->params[0] >> 32;
    Scale<T> top = 0;
    alignas(64) char last[blockscale_max * sizeof(T)];
    uint8_t* codes = dst + layout.scales_nbytes;
    for (uint64_t b = 0; b < layout.blocks; b++) {
      const uint64_t at = b * layout.block, rest = n - at;
      const char* x = src + at * sizeof(T);
      fetch_ahead<false>(x, layout.block * sizeof(T));
      if (rest < layout.block) {
        memset(last, 0, sizeof last);
        x = static_cast<char*>(memcpy(last, x, rest * sizeof(T)));
      }
      const Scale<T> scale = largest(T{}, x, layout.block);
      if (scale - scale != 0) return NONFINITE;
      store(dst + b * sizeof scale, scale);
      top = scale > top ? scale : top;
      uint8_t spare[blockscale_max], *to = rest < layout.block ? spare : codes + Q::nbytes(at);
      if (stochastic) {
        using W = typename std::conditional<sizeof scale == 8, uint64_t, uint32_t>::type;
        const uint32_t key = blockscale_key(args->params[1], bit_cast<W>(scale), b);
        block<T, true>(x, layout.block, scale, key, to);
      } else {
        block<T, false>(x, layout.block, scale, 0, to);
      }
      if (to == spare) memcpy(codes + Q::nbytes(at), spare, Q::nbytes(rest));
    }
    // Half a gap, or a whole one; rounding errors of its computation; rounding to the type.
    const double gap = Q::error * (stochastic ? 2 : 1) * (1 + 0x1p-20), rounding = Real<T>::unit * 1.01;
    args->bound = top > 0 ? top * (gap + rounding) + 4 * Real<T>::tiny : 0;
    return layout.nbytes;
  }

  template <class T, bool stochastic>
  static void block(const char* x, int n, Scale<T> scale, uint32_t key, uint8_t* dst) {
    alignas(64) uint32_t code[blockscale_max];
    const double lift = is_tiny<T>(scale) ? 0x1p600 : 1, inverse = scale > 0 ? Q::limit / (scale * lift) : 0;
    Lanes counter;
    for (int k = 0; k < reals; k++) counter[k] = key + k * blockscale_golden;
    for (int i = 0; i < n; i += reals) {
      Doubles v = Real<T>::widen(Real<T>::load(x + i * sizeof(T)));
      if constexpr (sizeof(T) == 8) v *= lift;
      v *= inverse;
      if constexpr (stochastic) {
        store(code + i, Q::stochastic(v, blockscale_mix(counter)));
        counter += reals * blockscale_golden;
      } else {
        store(code + i, Q::nearest(v));
      }
    }
    Q::pack(code, n, dst);
  }
};

template <class Q, bool adding>
struct Decode {
  const Args* args;
  const uint8_t* payload;
  uint64_t nbytes;
  char* dst;

  template <class T>
  int64_t run(uint64_t n) const {
    constexpr int element = adding ? sizeof(Scale<T>) : sizeof(T);
    const Layout layout = Layout::of<Q, T>(args, n);
    if (!layout.valid || layout.nbytes != nbytes) return BAD_STREAM;
    const uint8_t* codes = payload + layout.scales_nbytes;
    for (uint64_t b = 0; b < layout.blocks; b++) {
      const uint64_t at = b * layout.block, rest = n - at;
      const Scale<T> scale = load<Scale<T>>(payload + b * sizeof scale);
      // Rejects negative, infinite and NaN scales.
      if (!(scale >= 0) || scale - scale != 0) return BAD_STREAM;
      char* d = dst + at * element;
      fetch_ahead<true>(d, layout.block * element);
      if (rest >= layout.block) {
        block<T>(codes + Q::nbytes(at), layout.block, scale, d);
      } else {
        uint8_t spare[blockscale_max] = {};
        alignas(64) char whole[blockscale_max * element];
        memset(whole, 0, sizeof whole);
        memcpy(spare, codes + Q::nbytes(at), Q::nbytes(rest));
        memcpy(whole, d, rest * element);
        block<T>(spare, layout.block, scale, whole);
        memcpy(d, whole, rest * element);
      }
    }
    return 0;
  }

  template <class T>
  static void block(const uint8_t* src, int n, Scale<T> scale, char* d) {
    alignas(64) uint32_t code[blockscale_max];
    Q::unpack(src, n, code);
    const double lift = is_tiny<T>(scale) ? 0x1p600 : 1, top = scale * lift, step = top / Q::limit;
    for (int i = 0; i < n; i += reals) {
      Doubles v = Q::value(load<Lanes>(code + i)) * step;
      if constexpr (sizeof(T) == 8) {
        v = v > top ? Doubles{} + top : v;
        v = v < -top ? Doubles{} - top : v;
        v *= 1 / lift;
      }
      deliver<T, adding>(d, i / reals, Real<T>::round(v));
    }
  }
};

template <class Q>
int64_t encode(Args* args, const void* src, void* dst) {
  return with_real(args, Encode<Q>{args, static_cast<const char*>(src), static_cast<uint8_t*>(dst)});
}

template <class Q, bool adding>
int64_t decode(const Args* args, const void* payload, uint64_t nbytes, void* dst) {
  if (adding && !accumulates(args)) return UNSUPPORTED;
  return with_real(
      args, Decode<Q, adding>{args, static_cast<const uint8_t*>(payload), nbytes, static_cast<char*>(dst)});
}

}  // namespace

#define CC_BLOCKSCALE(name, Q) \
  extern const Codec name##_codec = {#name, encode<Q>, decode<Q, false>, decode<Q, true>, nullptr};
CC_BLOCKSCALE(int8, Int8)
CC_BLOCKSCALE(int4, Int4)
CC_BLOCKSCALE(fp8, Fp8)

}  // namespace CC_LEVEL
}  // namespace compcoll
