// szp between values and integers: steps, quantising and checking, and the inverse.
#pragma once
#include "szp_payload.h"

namespace compcoll {
namespace CC_LEVEL {
namespace {

template <class T> using Value = typename Real<T>::value;
template <class T> using Scalar = typename Real<T>::real;
template <class T> struct Bits {
  using word = int32_t;
  using type = vec<word, reals>;
};
template <> struct Bits<double> {
  using word = int64_t;
  using type = vec<word, reals>;
};

bool valid_step(double s) { return s >= szp_bound_min && s <= 2 * szp_bound_max; }

// Bits of the largest number of the type that is at most d >= 0. Comparing with it is comparing with d.
template <class T>
typename Bits<T>::type floor_bits(double d) {
  Scalar<T> r = Scalar<T>(d);
  auto lower = bit_cast<typename Bits<T>::word>(r);
  return typename Bits<T>::type{} + (double(r) > d ? lower - 1 : lower);
}

template <class V>
V magnitude(V v) {
  return v & ~((V{} + 1) << (8 * sizeof v[0] - 1));
}
template <class V>
V larger(V a, V b) {
  return a > b ? a : b;
}

template <class T>
Value<T> value_of(HalfWords q, double step) {
  return Real<T>::round(to_doubles((Integers)q) * step);
}

// The largest |x|, as bits, that needs no check because rounding cannot carry x' past the bound (szp.h).
// Steps near the subnormal numbers, and numbers near the overflow, are always checked.
template <class T>
typename Bits<T>::type sure_bits(double step, double tolerance) {
  constexpr bool narrow = sizeof(Scalar<T>) == 4;
  constexpr double least = narrow ? 0x1p-130 : 0, most = narrow ? 0x1p+125 : 0x1p+1020;
  double sure = (narrow ? szp_sure_float32 : szp_sure_float64) * step;
  if (tolerance == 0 || step < least || step > most) sure = 0;
  return floor_bits<T>(sure < most ? sure : most);
}

// For 16-bit types: true if the error of each value is at most the limit. `reach` is a magnitude, as bits, up
// to which |q| < 2^31 surely; if a value exceeds it, `reached` becomes false and the other results are
// invalid.
template <class T>
bool quantise_pairs(const char* src, double inverse, double step, int32_t limit, int32_t reach, Block& q,
                    bool& reached) {
  SignedWords error = {}, most = {};
  for (int i = 0; i < n32; i++) {
    const Pair x = Real<T>::load_pair(src + i * 2 * reals * sizeof(T));
    Quads u[2];
    Floats y[2];
    for (int k = 0; k < 2; k++) {
      u[k] = szp_quantise<Doubles, Quads>(to_doubles(half(x, k)), inverse);
      y[k] = to_floats((bit_cast<Doubles>(u[k]) - szp_magic) * step);
    }
    q.v[i] = low_words(u[0], u[1]);
    const Pair v = Real<T>::round_pair(join(y[0], y[1]));
    error = larger(error, magnitude((SignedWords)(x - v)));
    most = larger(most, magnitude((SignedWords)x));
  }
  reached = !any_above(most, SignedWords{} + reach);
  return !any_above(error, SignedWords{} + limit);
}

// False if anything exceeds the limit: the values' errors if `checked`, else the values themselves.
template <class T, bool checked>
bool quantise(const char* src, double inverse, double step, typename Bits<T>::type limit, Block& q) {
  typename Bits<T>::type most = {};
  for (int i = 0; i < n32; i++) {
    Value<T> x[2];
    Quads u[2];
    for (int k = 0; k < 2; k++) {
      x[k] = Real<T>::load(src + (2 * i + k) * reals * sizeof(T));
      u[k] = szp_quantise<Doubles, Quads>(Real<T>::widen(x[k]), inverse);
    }
    q.v[i] = low_words(u[0], u[1]);
    for (int k = 0; k < 2; k++) {
      Value<T> v = checked ? x[k] - value_of<T>(half(q.v[i], k), step) : x[k];
      most = larger(most, magnitude((typename Bits<T>::type)v));
    }
  }
  return !any_above(most, limit);
}

// Writes the values of a block, or adds them.
template <class T, bool adding>
void put_values(const Block& q, double step, char* d) {
  for (int i = 0; i < n32; i++) {
    if constexpr (sizeof(T) == 2) {
      Floats y[2];
      for (int k = 0; k < 2; k++) y[k] = to_floats(to_doubles((Integers)half(q.v[i], k)) * step);
      const Pair v = Real<T>::round_pair(join(y[0], y[1]));
      if constexpr (adding) store(d + i * sizeof v, load<Pair>(d + i * sizeof v) + v);
      else Real<T>::store_pair(d + i * 2 * reals * sizeof(T), v);
    } else {
      for (int k = 0; k < 2; k++) deliver<T, adding>(d, 2 * i + k, value_of<T>(half(q.v[i], k), step));
    }
  }
}

template <class T>
void values(const Block& q, double step, Value<T>* v) {
  for (int i = 0; i < 2 * n32; i++) v[i] = value_of<T>(half(q.v[i / 2], i % 2), step);
}

// The values of a block in any form.
template <class T>
void values(const Reader& in, int width, const uint8_t* block, int raw_nbytes, double step, Value<T>* v) {
  Block q;
  if (width != szp_raw) {
    in.integers(width, block, q);
    return values<T>(q, step, v);
  }
  alignas(64) char whole[32 * sizeof(T)] = {};
  memcpy(whole, block, raw_nbytes);
  for (int i = 0; i < 2 * n32; i++) v[i] = Real<T>::load(whole + i * reals * sizeof(T));
}

template <class T>
int raw_nbytes(uint64_t n, uint64_t i) {
  return int((n - i < 32 ? n - i : 32) * sizeof(T));
}

// max - min of the finite values, halved because it may overflow; `some` is set to one of the values.
template <class T>
double half_range(const char* src, uint64_t n, double& some) {
  using B = typename Bits<T>::type;
  constexpr int chains = 4;  // hide the latency of minimum and maximum
  const B finite = floor_bits<T>(sizeof(Scalar<T>) == 8 ? 0x1.fffffffffffffp+1023 : 0x1.fffffep+127);
  Value<T> lo[chains], hi[chains];
  for (int k = 0; k < chains; k++) lo[k] = Value<T>{} + Scalar<T>(__builtin_inf()), hi[k] = -lo[k];
  auto look = [&](const char* p, int k) {
    Value<T> x = Real<T>::load(p);
    const B ok = magnitude((B)x) <= finite;
    const Value<T> below = ok ? x : lo[k], above = ok ? x : hi[k];
    lo[k] = below < lo[k] ? below : lo[k];
    hi[k] = above > hi[k] ? above : hi[k];
  };
  uint64_t i = 0;
  for (; i + chains * reals <= n; i += chains * reals)
    for (int k = 0; k < chains; k++) look(src + (i + k * reals) * sizeof(T), k);
  for (; i < n; i += reals) {
    alignas(64) char last[reals * sizeof(T)];
    for (int k = 0; k < reals; k++)
      memcpy(last + k * sizeof(T), src + (i + k < n ? i + k : n - 1) * sizeof(T), sizeof(T));
    look(last, 0);
  }
  double least = __builtin_inf(), most = -__builtin_inf();
  for (int k = 0; k < chains * reals; k++) {
    if (lo[k / reals][k % reals] < least) least = lo[k / reals][k % reals];
    if (hi[k / reals][k % reals] > most) most = hi[k / reals][k % reals];
  }
  some = most;
  return most * 0.5 - least * 0.5;
}

// Like half_range, for 16-bit types, as integers in the order of the numbers.
template <class T>
double half_range16(const char* src, uint64_t n, double& some) {
  constexpr int lanes16 = vector_nbytes / 2;
  using Shorts = vec<int16_t, lanes16>;
  const Shorts magnitude = Shorts{} + int16_t(0x7fff), infinity = Shorts{} + Real<T>::infinity;
  Shorts lo = magnitude, hi = ~magnitude;
  auto look = [&](Shorts x) {
    const Shorts s = x ^ ((x >> 15) & magnitude);
    const auto ok = (s < infinity) & (s > ~infinity);
    const Shorts below = ok ? s : magnitude, above = ok ? s : ~magnitude;
    lo = below < lo ? below : lo;
    hi = above > hi ? above : hi;
  };
  uint64_t i = 0;
  for (; i + lanes16 <= n; i += lanes16) look(load<Shorts>(src + 2 * i));
  if (i < n) {
    alignas(64) char last[2 * lanes16];
    for (int k = 0; k < lanes16; k++) memcpy(last + 2 * k, src + 2 * (i + k < n ? i + k : n - 1), 2);
    look(load<Shorts>(last));
  }
  int16_t least = lo[0], most = hi[0];
  for (int k = 1; k < lanes16; k++) {
    if (lo[k] < least) least = lo[k];
    if (hi[k] > most) most = hi[k];
  }
  if (least > most) return some = -__builtin_inf();  // no finite values
  auto number = [](int16_t s) {
    alignas(64) int16_t x[reals] = {int16_t(s ^ ((s >> 15) & 0x7fff))};
    return double(Real<T>::load(x)[0]);
  };
  some = number(most);
  return some * 0.5 - number(least) * 0.5;
}

// Stores the step in the header and returns the tolerance, or NaN if no step will do. The tolerance is 0 for
// equal values: then the step is chosen so that they are decoded exactly.
template <class T>
double resolve_bound(Args* args, const char* src, uint64_t n) {
  double bound = bit_cast<double>(args->params[0]), step = szp_steps * bound;
  if (args->params[1]) {
    double some, range;
    if constexpr (sizeof(T) == 2) range = half_range16<T>(src, n, some);
    else range = half_range<T>(src, n, some);
    // Compensates for rounding upwards: the bound is never larger than requested.
    bound = bit_cast<double>(args->params[1]) * (range > 0 ? range : 0) * 2 * (1 - 0x1p-51);
    if (bound > szp_bound_max) bound = szp_bound_max;
    step = szp_steps * bound;
    if (!(range > 0)) step = __builtin_fabs(some) > 0 ? __builtin_fabs(some) : 1;
    if (step > 2 * szp_bound_max) step = 1;  // no finite value, or one too large
  }
  args->params[0] = bit_cast<uint64_t>(step);
  return valid_step(step) && bound >= 0 ? bound : __builtin_nan("");
}

}  // namespace
}  // namespace CC_LEVEL
}  // namespace compcoll
