// szp on the CPU, a block at a time: its 32 integers stay in vector registers between quantising and packing.
#include "prefetch.h"
#include "szp_values.h"
#include "table.h"

namespace compcoll {
namespace CC_LEVEL {
namespace {

// The last block, padded with its last value.
template <class T>
const char* fill_up(char* whole, const char* x, int n) {
  memcpy(whole, x, n * sizeof(T));
  for (int k = n * sizeof(T); k < int(32 * sizeof(T)); k++) whole[k] = whole[k - sizeof(T)];
  return whole;
}

struct Encode {
  Args* args;
  const char* src;
  void* dst;

  template <class T>
  int64_t run(uint64_t n) const {
    double tolerance = resolve_bound<T>(args, src, n);
    if (tolerance != tolerance) return UNREPRESENTABLE;
    const double step = bit_cast<double>(args->params[0]), inverse = 1 / step;
    const auto sure = sure_bits<T>(step, tolerance), limit = floor_bits<T>(tolerance);
    [[maybe_unused]] const auto reach = floor_bits<T>(step < 0x1p+90 ? step * 0x1p+30 : 0x1p+120);
    args->bound = tolerance;
    bool fits;
    Writer out = Writer::begin(args, dst, n, fits);
    if (!fits) return TOO_LARGE;
    // First the integers of some blocks, then their codes: a mispredicted branch for one block does not delay
    // the arithmetic of the next ones.
    constexpr int batch = sizeof(T) == 2 ? 4 : 8;
    Block q[batch];
    bool within[batch];
    alignas(64) char whole[32 * sizeof(T)];
    for (uint64_t begin = 0; begin < n; begin += batch * 32) {
      const int count = n - begin < batch * 32 ? int((n - begin + 31) / 32) : batch;
      for (int k = 0; k < count; k++) {
        const uint64_t i = begin + 32 * k;
        const char* x = src + i * sizeof(T);
        fetch_ahead<false>(x, sizeof whole);
        if (n - i < 32) x = fill_up<T>(whole, x, n - i);
        bool settled;
        if constexpr (sizeof(T) == 2)
          within[k] = quantise_pairs<T>(x, inverse, step, limit[0], reach[0], q[k], settled);
        else within[k] = settled = quantise<T, false>(x, inverse, step, sure, q[k]);
        if (!settled) within[k] = quantise<T, true>(x, inverse, step, limit, q[k]);
      }
      Coded coded[batch];
      for (int k = 0; k < count; k++)
        if (within[k]) coded[k] = Coded(q[k], raw_nbytes<T>(n, begin + 32 * k));
      for (int k = 0; k < count; k++) {
        const uint64_t i = begin + 32 * k;
        if (!out.put<T>(coded[k], src + i * sizeof(T), raw_nbytes<T>(n, i))) return TOO_LARGE;
      }
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
    const double step = bit_cast<double>(args->params[0]);
    bool sound;
    Reader in = Reader::begin(payload, nbytes, n, sound);
    if (!sound || !valid_step(step)) return BAD_STREAM;
    for (uint64_t i = 0; i < n; i += 32) {
      const int raw = raw_nbytes<T>(n, i), count = raw / sizeof(T);
      const uint8_t* block;
      const int width = in.next(raw, block);
      if (width < 0) return BAD_STREAM;
      char* d = dst + i * element;
      fetch_ahead<true>(d, 32 * element);
      if (!adding && width == szp_raw) {
        copy_raw<T>(d, block, raw);
        continue;
      }
      if (count == 32) {
        put<T>(in, width, block, raw, step, d);
      } else {
        alignas(64) char whole[32 * element] = {};
        memcpy(whole, d, count * element);
        put<T>(in, width, block, raw, step, whole);
        memcpy(d, whole, count * element);
      }
    }
    return in.at == in.end ? 0 : BAD_STREAM;
  }

  template <class T>
  static void put(const Reader& in, int width, const uint8_t* block, int raw, double step, char* d) {
    if (width != szp_raw) {
      Block q;
      in.integers(width, block, q);
      return put_values<T, adding>(q, step, d);
    }
    Value<T> v[2 * n32];
    values<T>(in, width, block, raw, step, v);
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
    const double step = bit_cast<double>(args->params[0]);
    bool sound[2], fits;
    Reader ina = Reader::begin(a, a_nbytes, n, sound[0]), inb = Reader::begin(b, b_nbytes, n, sound[1]);
    if (!sound[0] || !sound[1] || !valid_step(step)) return BAD_STREAM;
    Writer out = Writer::begin(args, dst, n, fits);
    if (!fits) return TOO_LARGE;
    double largest = 0;
    SignedWords most = {};
    for (uint64_t i = 0; i < n; i += 32) {
      const int raw = raw_nbytes<T>(n, i);
      const uint8_t *pa, *pb;
      const int wa = ina.next(raw, pa), wb = inb.next(raw, pb);
      if (wa < 0 || wb < 0) return BAD_STREAM;
      alignas(64) char whole[32 * sizeof(T)];
      Block q;
      Coded sum;
      if (wa != szp_raw && wb != szp_raw && sum_integers(ina, wa, pa, inb, wb, pb, q, most))
        sum = Coded(q, raw);
      if (sum.width == szp_raw) {
        Value<T> va[2 * n32], vb[2 * n32];
        values<T>(ina, wa, pa, raw, step, va);
        values<T>(inb, wb, pb, raw, step, vb);
        sum_values<T>(va, vb, whole, largest);
      }
      if (!out.put<T>(sum, whole, raw)) return TOO_LARGE;
    }
    if (ina.at != ina.end || inb.at != inb.end) return BAD_STREAM;
    for (int k = 0; k < lanes32; k++)
      if ((most[k] + 1.0) * step > largest) largest = (most[k] + 1.0) * step;
    if (largest > Real<T>::most) largest = __builtin_inf();
    args->bound = largest * Real<T>::unit * (1 + 0x1p-9) + 2 * Real<T>::tiny;
    return out.at - static_cast<uint8_t*>(dst);
  }

  // False if a sum needs more than 32 bits; `most`: the largest |q| per lane so far, or 1 less.
  static bool sum_integers(const Reader& ina, int wa, const uint8_t* pa, const Reader& inb, int wb,
                           const uint8_t* pb, Block& q, SignedWords& most) {
    Block qa, qb;
    ina.integers(wa, pa, qa);
    inb.integers(wb, pb, qb);
    SignedWords seen = most, overflow = {};
    for (int i = 0; i < n32; i++) {
      q.v[i] = qa.v[i] + qb.v[i];
      overflow |= (SignedWords)((qa.v[i] ^ q.v[i]) & (qb.v[i] ^ q.v[i]));
      const auto s = (SignedWords)q.v[i];
      seen = larger(seen, s ^ (s >> 31));
    }
    if (any(overflow < 0)) return false;
    most = seen;
    return true;
  }

  template <class T>
  static void sum_values(const Value<T>* va, const Value<T>* vb, char* whole, double& largest) {
    for (int i = 0; i < 2 * n32; i++) {
      Value<T> v = va[i] + vb[i];
      for (int k = 0; k < reals; k++) {
        const double size = __builtin_fabs(v[k]);
        // The error of a sum that overflows is unbounded; sums of non-finite values are exact.
        if (size > largest && __builtin_isfinite(va[i][k]) && __builtin_isfinite(vb[i][k])) largest = size;
        if (size != size) v[k] = Scalar<T>(__builtin_nan(""));  // which NaN a sum keeps differs by machine
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
