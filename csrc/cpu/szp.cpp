// szp on the CPU: a block at a time, its 32 integers in vector registers between quantising and packing.
#include <cmath>
#include <cstring>

#include "szp_payload.h"
#include "table.h"

namespace compcoll {
namespace CC_LEVEL {
namespace {

template <class T> using Value = typename Real<T>::value;
template <class T> using Scalar = typename Real<T>::real;
template <class T> struct Bits { using type = vec<int32_t, reals>; };
template <> struct Bits<double> { using type = vec<int64_t, reals>; };

double from_bits(uint64_t u) {
  double d;
  memcpy(&d, &u, 8);
  return d;
}

uint64_t to_bits(double d) {
  uint64_t u;
  memcpy(&u, &d, 8);
  return u;
}

bool valid_step(double s) { return s >= szp_bound_min && s <= 2 * szp_bound_max; }

// Bits of the largest number of the type that is not above d >= 0: comparing with it is comparing with d.
template <class T>
typename Bits<T>::type floor_bits(double d) {
  Scalar<T> r = Scalar<T>(d);
  auto lower = load<std::conditional_t<sizeof r == 8, int64_t, int32_t>>(&r);
  return typename Bits<T>::type{} + (double(r) > d ? lower - 1 : lower);
}

template <class V>
V magnitude(V v) { return v & ~((V{} + 1) << (8 * sizeof v[0] - 1)); }
template <class V>
V larger(V a, V b) { return a > b ? a : b; }

template <class T>
Value<T> value_of(HalfWords q, double step) {
  return Real<T>::round(to_doubles((Integers)q) * step);
}

// Up to which |x| no check is needed, since rounding cannot carry x' past the bound (szp.h), in bits. Steps
// next to the subnormal numbers, and numbers next to the overflow, are left to the check.
template <class T>
typename Bits<T>::type sure_bits(double step, double tolerance) {
  constexpr bool narrow = sizeof(Scalar<T>) == 4;
  constexpr double least = narrow ? 0x1p-130 : 0, most = narrow ? 0x1p+125 : 0x1p+1020;
  double sure = (narrow ? szp_sure_float32 : szp_sure_float64) * step;
  if (sizeof(T) == 2 || tolerance == 0 || step < least || step > most) sure = 0;
  return floor_bits<T>(sure < most ? sure : most);
}

// False where something is above the limit: the values' error if they are checked, else they themselves.
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
  return !any(most > limit);
}

template <class T>
void values(const Block& q, double step, Value<T>* v) {
  for (int i = 0; i < 2 * n32; i++) v[i] = value_of<T>(half(q.v[i / 2], i % 2), step);
}

// The values of a block, whichever way it is stored.
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
int raw_nbytes(uint64_t n, uint64_t i) { return int((n - i < 32 ? n - i : 32) * sizeof(T)); }

// max - min of the finite values, halved because it may overflow; and one of the values.
template <class T>
double half_range(const char* src, uint64_t n, double& some) {
  using B = typename Bits<T>::type;
  constexpr int chains = 4;  // hide the latency of minimum and maximum
  const B finite = floor_bits<T>(sizeof(Scalar<T>) == 8 ? 0x1.fffffffffffffp+1023 : 0x1.fffffep+127);
  Value<T> lo[chains], hi[chains];
  for (int k = 0; k < chains; k++) lo[k] = Value<T>{} + Scalar<T>(INFINITY), hi[k] = -lo[k];
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
  double least = INFINITY, most = -INFINITY;
  for (int k = 0; k < chains * reals; k++) {
    if (lo[k / reals][k % reals] < least) least = lo[k / reals][k % reals];
    if (hi[k / reals][k % reals] > most) most = hi[k / reals][k % reals];
  }
  some = most;
  return most * 0.5 - least * 0.5;
}

// Puts the step into the header and returns the tolerance, or NaN where no step can serve. The tolerance
// is 0 for equal values: then the step is chosen so that they come back as they were.
template <class T>
double settle(Args* args, const char* src, uint64_t n) {
  double bound = from_bits(args->params[0]), step = szp_steps * bound;
  if (args->params[1]) {
    double some, range = half_range<T>(src, n, some);
    // Roundings upwards are taken back: the bound is never more than was asked for.
    bound = from_bits(args->params[1]) * (range > 0 ? range : 0) * 2 * (1 - 0x1p-51);
    if (bound > szp_bound_max) bound = szp_bound_max;
    step = szp_steps * bound;
    if (!(range > 0)) step = std::fabs(some) > 0 ? std::fabs(some) : 1;
    if (step > 2 * szp_bound_max) step = 1;  // no finite value, or one too large
  }
  args->params[0] = to_bits(step);
  return valid_step(step) && bound >= 0 ? bound : NAN;
}

struct Encode {
  Args* args;
  const char* src;
  void* dst;

  template <class T>
  int64_t run(uint64_t n) const {
    double tolerance = settle<T>(args, src, n);
    if (std::isnan(tolerance)) return UNREPRESENTABLE;
    const double step = from_bits(args->params[0]), inverse = 1 / step;
    const auto sure = sure_bits<T>(step, tolerance), limit = floor_bits<T>(tolerance);
    args->bound = tolerance;
    bool fits;
    Writer out = Writer::begin(args, dst, n, fits);
    if (!fits) return TOO_LARGE;
    for (uint64_t i = 0; i < n; i += 32) {
      const char* x = src + i * sizeof(T);
      alignas(64) char whole[32 * sizeof(T)];
      int nbytes = raw_nbytes<T>(n, i);
      if (nbytes < int(sizeof whole)) {
        memcpy(whole, x, nbytes);
        for (int k = nbytes; k < int(sizeof whole); k++) whole[k] = whole[k - sizeof(T)];
        x = whole;
      }
      Block q;
      bool within = sizeof(T) > 2 && quantise<T, false>(x, inverse, step, sure, q);
      if (!within) within = quantise<T, true>(x, inverse, step, limit, q);
      if (!out.put(within ? Coded(q, nbytes) : Coded(), x, nbytes)) return TOO_LARGE;
    }
    return out.at - static_cast<uint8_t*>(dst);
  }
};

template <bool adding>
struct Decode {
  const Args* args;
  const void* payload;
  uint64_t nbytes;
  char* dst;

  template <class T>
  int64_t run(uint64_t n) const {
    constexpr int element = adding ? sizeof(Scalar<T>) : sizeof(T);
    const double step = from_bits(args->params[0]);
    bool sound;
    Reader in = Reader::begin(payload, nbytes, n, sound);
    if (!sound || !valid_step(step)) return BAD_STREAM;
    for (uint64_t i = 0; i < n; i += 32) {
      const int raw = raw_nbytes<T>(n, i), count = raw / sizeof(T);
      const uint8_t* block;
      const int width = in.next(raw, block);
      if (width < 0) return BAD_STREAM;
      char* d = dst + i * element;
      if (!adding && width == szp_raw) {
        memcpy(d, block, raw);
        continue;
      }
      Value<T> v[2 * n32];
      values<T>(in, width, block, raw, step, v);
      if (count == 32) {
        put<T>(v, d);
      } else {
        alignas(64) char whole[32 * element] = {};
        memcpy(whole, d, count * element);
        put<T>(v, whole);
        memcpy(d, whole, count * element);
      }
    }
    return in.at == in.end ? 0 : BAD_STREAM;
  }

  template <class T>
  static void put(const Value<T>* v, char* d) {
    for (int i = 0; i < 2 * n32; i++) deliver<T, adding>(d, i, v[i]);
  }
};

struct Add {
  Args* args;
  const void* a;
  uint64_t a_nbytes;
  const void* b;
  uint64_t b_nbytes;
  void* dst;

  template <class T>
  int64_t run(uint64_t n) const {
    const double step = from_bits(args->params[0]);
    bool sound[2], fits;
    Reader ina = Reader::begin(a, a_nbytes, n, sound[0]), inb = Reader::begin(b, b_nbytes, n, sound[1]);
    if (!sound[0] || !sound[1] || !valid_step(step)) return BAD_STREAM;
    Writer out = Writer::begin(args, dst, n, fits);
    if (!fits) return TOO_LARGE;
    double largest = 0;
    for (uint64_t i = 0; i < n; i += 32) {
      const int raw = raw_nbytes<T>(n, i);
      const uint8_t *pa, *pb;
      const int wa = ina.next(raw, pa), wb = inb.next(raw, pb);
      if (wa < 0 || wb < 0) return BAD_STREAM;
      alignas(64) char whole[32 * sizeof(T)];
      Block q;
      Coded sum;
      if (wa != szp_raw && wb != szp_raw && sum_integers(ina, wa, pa, inb, wb, pb, q, largest, step))
        sum = Coded(q, raw);
      if (sum.width == szp_raw) {
        Value<T> va[2 * n32], vb[2 * n32];
        values<T>(ina, wa, pa, raw, step, va);
        values<T>(inb, wb, pb, raw, step, vb);
        sum_values<T>(va, vb, whole, largest);
      }
      if (!out.put(sum, whole, raw)) return TOO_LARGE;
    }
    if (ina.at != ina.end || inb.at != inb.end) return BAD_STREAM;
    args->bound = largest * Real<T>::unit * (1 + 0x1p-9) + 2 * Real<T>::tiny;
    return out.at - static_cast<uint8_t*>(dst);
  }

  // False where a sum leaves 32 bits.
  static bool sum_integers(const Reader& ina, int wa, const uint8_t* pa, const Reader& inb, int wb,
                           const uint8_t* pb, Block& q, double& largest, double step) {
    Block qa, qb;
    ina.integers(wa, pa, qa);
    inb.integers(wb, pb, qb);
    vec<int32_t, lanes32> most = {};
    Words overflow = {};
    for (int i = 0; i < n32; i++) {
      q.v[i] = qa.v[i] + qb.v[i];
      overflow |= (qa.v[i] ^ q.v[i]) & (qb.v[i] ^ q.v[i]);
      auto s = (vec<int32_t, lanes32>)q.v[i];
      most = larger(most, s ^ (s >> 31));  // |s| or |s| - 1
    }
    uint32_t over = 0, m = 0;
    for (int i = 0; i < lanes32; i++) {
      over |= overflow[i];
      m = m > uint32_t(most[i]) ? m : most[i];
    }
    if (over >> 31) return false;
    if ((m + 1.0) * step > largest) largest = (m + 1.0) * step;
    return true;
  }

  template <class T>
  static void sum_values(const Value<T>* va, const Value<T>* vb, char* whole, double& largest) {
    for (int i = 0; i < 2 * n32; i++) {
      Value<T> v = va[i] + vb[i];
      for (int k = 0; k < reals; k++) {
        if (v[k] != v[k]) v[k] = Scalar<T>(NAN);  // which of two NaNs a sum keeps differs by machine
        else if (std::fabs(v[k]) > largest && std::isfinite(v[k])) largest = std::fabs(v[k]);
      }
      Real<T>::store(whole + i * reals * sizeof(T), Real<T>::round(Real<T>::widen(v)));
    }
  }
};

int64_t encode(Args* args, const void* src, void* dst) {
  return with_real(args, Encode{args, static_cast<const char*>(src), dst});
}

int64_t decode(const Args* args, const void* payload, uint64_t nbytes, void* dst) {
  return with_real(args, Decode<false>{args, payload, nbytes, static_cast<char*>(dst)});
}

int64_t decode_add(const Args* args, const void* payload, uint64_t nbytes, void* dst) {
  if (!accumulates(args)) return UNSUPPORTED;
  return with_real(args, Decode<true>{args, payload, nbytes, static_cast<char*>(dst)});
}

int64_t add(Args* args, const void* a, uint64_t a_nbytes, const void* b, uint64_t b_nbytes, void* dst) {
  return with_real(args, Add{args, a, a_nbytes, b, b_nbytes, dst});
}

}  // namespace

extern const Codec szp_codec = {"szp", encode, decode, decode_add, add};

}  // namespace CC_LEVEL
}  // namespace compcoll
