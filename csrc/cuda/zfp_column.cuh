// Blocks of 2 and 3 dimensions: their positions in the array, and their words in shared memory.
#pragma once
#include "zfp.cuh"

namespace compcoll {
namespace CC_LEVEL {
namespace cuda {

// The array and its blocks; job.params: bits of a block, number of values along x (low word) and along y.
template <int D>
struct Field {
  uint32_t n[3], blocks[3], count, maxbits;
  uint64_t words;  // 32-bit words of the payload, whose size is a multiple of 64 bits

  CC_HD explicit Field(const Job& job) {
    n[0] = uint32_t(job.params[1]), n[1] = uint32_t(job.params[1] >> 32);
    n[2] = uint32_t(job.n / (uint64_t(n[0]) * n[1]));
    for (int i = 0; i < 3; i++) blocks[i] = n[i] / 4 + (n[i] % 4 != 0);
    count = blocks[0] * blocks[1] * blocks[2];
    maxbits = uint32_t(job.params[0]);
    words = (uint64_t(count) * maxbits + 63) / 64 * 2;
  }
};

// Position of a block, and number of values from there to each axis's end.
template <int D>
struct Corner {
  const Field<D>& field;
  uint32_t at[3], left[3];

  CC_HD Corner(const Field<D>& f, uint32_t block) : field(f) {
    at[0] = block % f.blocks[0];
    at[1] = block / f.blocks[0];
    at[2] = D == 3 ? at[1] / f.blocks[1] : 0;
    if (D == 3) at[1] %= f.blocks[1];
    for (int i = 0; i < 3; i++) at[i] *= 4, left[i] = f.n[i] - at[i];
  }
  CC_HD uint64_t row(uint32_t y, uint32_t z) const {
    return ((at[2] + z) * uint64_t(field.n[1]) + at[1] + y) * field.n[0] + at[0];
  }
  // The element that zfp pads with after the end of an axis.
  CC_HD static uint32_t padded(uint32_t left, uint32_t i) { return i < left ? i : i == 3 ? 0 : left - 1; }
};

// A block's words in shared memory, `step` apart, in the order of the coefficients.
template <class L, int D>
struct Column {
  static constexpr int size = 1 << 2 * D, bits = Format<L>::bits;
  static constexpr uint32_t threads = size * sizeof(L) > 256 ? 64 : CC_CTA, step = threads;
  // A plane has a bit for each coefficient.
  using Plane = typename Choice<(size > 32), uint64_t, uint32_t>::type;
  L* words;

  CC_HD L& operator[](int i) const { return words[i * step]; }
  CC_HD L& place(int i) const {  // x + 4 y + 16 z
    constexpr Places<D> places;
    return words[places.at[i] * step];
  }

  template <int N>
  CC_HD void transpose(L* a) const {
    constexpr int first = N == 16 ? 4 : 8, second = N / first;
    for (int i = 0; i < second; i++) exchange_among<first, N / 2>(a + i * step, second * step);
    for (int i = 0; i < first; i++) exchange_among<second, second / 2>(a + i * second * step, step);
  }
  CC_HD void transpose() const {
    constexpr int side = size < bits ? size : bits;
    for (int i = 0; i < size; i += side) transpose<side>(words + i * step);
  }

  // Plane k of transposed words.
  CC_HD Plane plane(int k) const {
    if constexpr (size > bits) return (*this)[k] | Plane((*this)[bits + k]) << bits;
    else if constexpr (size == bits) return (*this)[k];
    else return Plane((*this)[k % size] >> (k / size * size)) & ((Plane(1) << size) - 1);
  }
  // Words must be 0 before the first plane.
  CC_HD void set_plane(int k, Plane x) const {
    if constexpr (size > bits) (*this)[k] = L(x), (*this)[bits + k] = L(x >> bits);
    else (*this)[k % size] |= L(x) << (k / size * size % bits);
  }
};

template <class L, int D>
CC_HD Column<L, D> column() {
  using C = Column<L, D>;
  struct Words { L word[C::size * C::step]; };
  CC_SHARED(Words, shared);
  return C{shared.word + threadIdx.x % C::threads};
}

}  // namespace cuda
}  // namespace CC_LEVEL
}  // namespace compcoll
