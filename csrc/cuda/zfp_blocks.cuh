// ZFP in 2 and 3 dimensions on the GPU: a thread codes a block. The threads of a warp take blocks that are
// adjacent along x, so that loads and stores are coalesced. They exchange nothing for a transform or a plane,
// as they would if several threads shared a block.
#pragma once
#include "zfp_bits.cuh"

namespace compcoll {
namespace CC_LEVEL {
namespace cuda {

// Widened values to the positions of their coefficients; returns the largest magnitude.
template <class E, int D, class C>
CC_HD typename E::Word load_values(const Job& job, const Corner<D>& corner, const C& column) {
  using L = typename E::Word;
  using S = typename E::Stored;
  L magnitude = 0;
#pragma unroll
  for (int r = 0; r < C::size / 4; r++) {
    const uint32_t y = corner.padded(corner.left[1], r % 4);
    const uint32_t z = D == 3 ? corner.padded(corner.left[2], r / 4) : 0;
    const S* p = reinterpret_cast<const S*>(job.src) + corner.row(y, z);
    Pack<S, 4> row;
    if (corner.left[0] >= 4 && aligned(p, sizeof row < 16 ? 8 : 16))
      row = *reinterpret_cast<const Pack<S, 4>*>(p);
    else
      for (uint32_t i = 0; i < 4; i++) row.v[i] = p[corner.padded(corner.left[0], i)];
    for (int i = 0; i < 4; i++) {
      const L v = E::template widen<L>(row.v[i]);
      magnitude = larger_magnitude(magnitude, v);
      column.place(4 * r + i) = v;
    }
    keep_in_memory();
  }
  return magnitude;
}

template <int D, class L, class C>
CC_HD void forward_block(const C& column, L scale) {
#pragma unroll
  for (int slab = 0; slab < C::size; slab += 16) {
    keep_in_memory();
    L a[16];
    for (int i = 0; i < 16; i++) a[i] = quantise(column.place(slab + i), scale);
    transform_forward<2>(a);
    for (int i = 0; i < 16; i++) column.place(slab + i) = D == 2 ? negabinary(a[i]) : a[i];
  }
  if constexpr (D == 3) {
#pragma unroll
    for (int i = 0; i < 16; i++) {
      keep_in_memory();
      L a[4];
      for (int z = 0; z < 4; z++) a[z] = column.place(i + 16 * z);
      lift_forward(a[0], a[1], a[2], a[3]);
      for (int z = 0; z < 4; z++) column.place(i + 16 * z) = negabinary(a[z]);
    }
  }
}

// Negabinary coefficients to values in the array.
template <class E, int D, bool Accumulate, class C>
CC_HD void store_values(const Job& job, const Corner<D>& corner, const C& column, typename E::Word scale) {
  using L = typename E::Word;
  using S = Target<E, Accumulate>;
  if constexpr (D == 3) {
#pragma unroll
    for (int i = 0; i < 16; i++) {
      keep_in_memory();
      L a[4];
      for (int z = 0; z < 4; z++) a[z] = from_negabinary(column.place(i + 16 * z));
      lift_inverse(a[0], a[1], a[2], a[3]);
      for (int z = 0; z < 4; z++) column.place(i + 16 * z) = a[z];
    }
  }
#pragma unroll
  for (uint32_t z = 0; z < C::size / 16; z++) {
    keep_in_memory();
    L a[16];
    for (int i = 0; i < 16; i++) {
      const L v = column.place(16 * z + i);
      a[i] = D == 2 ? from_negabinary(v) : v;
    }
    transform_inverse<2>(a);
    for (uint32_t y = 0; y < 4; y++) {
      if (y >= corner.left[1] || (D == 3 && z >= corner.left[2])) continue;
      for (int i = 0; i < 4; i++) a[4 * y + i] = dequantise(a[4 * y + i], scale);
      S* p = reinterpret_cast<S*>(job.dst) + corner.row(y, z);
      store_row<E, Accumulate>(p, corner.left[0], aligned(p, 4 * sizeof(S) < 16 ? 8 : 16), a + 4 * y);
    }
  }
}

template <class E, int D, class C>
CC_HD void encode_block(const Job& job, const Field<D>& field, uint32_t block, const C& column,
                        Extent<typename E::Word>& extent) {
  using L = typename E::Word;
  using F = Format<L>;
  const L magnitude = load_values<E>(job, Corner<D>(field, block), column);
  const L e = exponent(magnitude);
  extent.add_magnitude(magnitude);
  forward_block<D>(column, quantise_scale(e));
  column.transpose();
  auto stream = reinterpret_cast<uint32_t*>(job.dst);
  BlockWriter out(stream, block * uint64_t(field.maxbits), field.maxbits);
  int lowest = 0;
  if (magnitude) {
    out.put(uint32_t(e + e + 1), F::header);
    lowest = write_planes(column, out);
  }
  out.finish();
  extent.template add_error<D>(e, L(lowest), magnitude);
  // If no words are shared, no block writes the zeros that end the stream.
  if (block == field.count - 1 && field.maxbits % 64 == 32 && field.count % 2) stream[field.words - 1] = 0;
}

// The first C::threads threads of each block of threads iterate over the array's blocks in strides.
template <class C, class Code>
CC_HD void for_blocks(uint32_t count, Code code) {
  if (threadIdx.x >= C::threads) return;
  for (uint64_t b = blockIdx.x * uint64_t(C::threads) + threadIdx.x; b < count;
       b += gridDim.x * uint64_t(C::threads))
    code(uint32_t(b));
}

// Clears the words that blocks share.
template <int D>
CC_HD void zfp_clear(const Job& job) {
  const Field<D> field(job);
  if (4 * field.words > job.nbytes + slack) return;
  for (uint64_t i = thread_id(); i < field.words; i += thread_count())
    reinterpret_cast<uint32_t*>(job.dst)[i] = 0;
}

template <class E, int D>
CC_HD void encode_field(const Job& job, const Field<D>& field) {
  using L = typename E::Word;
  const Column<L, D> c = column<L, D>();
  Extent<L> extent;
  for_blocks<Column<L, D>>(field.count, [&](uint32_t b) { encode_block<E>(job, field, b, c, extent); });
  note_max(&job.result->extent[0], extent.largest);
  note_max(&job.result->extent[1], extent.smallest);
  note_max(&job.result->extent[2], extent.key);
}

// Words that blocks share are incomplete when they are written, so there is no checksum yet.
template <class E, int D>
CC_HD void zfp_encode_blocks(const Job& job) {
  const Field<D> field(job);
  if (4 * field.words <= job.nbytes + slack) encode_field<E>(job, field);
  run_by_last_block(job, [&] { finish<E, D, Field<D>>(job); });
}

template <class E, int D, bool Accumulate>
CC_HD void zfp_decode_blocks(const Job& job) {
  using L = typename E::Word;
  using F = Format<L>;
  using C = Column<L, D>;
  const Field<D> field(job);
  const C c = column<L, D>();
  for_blocks<C>(field.count, [&](uint32_t b) {
    const BlockReader in(reinterpret_cast<const uint32_t*>(job.src), field.words, b * uint64_t(field.maxbits),
                         field.maxbits);
    const uint32_t header = in.peek(0, 0u), some = header & 1;
    const L e = some ? header >> 1 & (2 * F::bias + 1) : 0;
    for (int i = 0; i < C::size; i++) c[i] = 0;
    uint32_t pos = some ? F::header : in.end, n = 0;
    for (int k = F::bits - 1; k >= 0 && pos < in.end; k--)
      c.set_plane(k, read_plane<C::size, typename C::Plane>(in, pos, n));
    c.transpose();
    store_values<E, D, Accumulate>(job, Corner<D>(field, b), c, dequantise_scale(e));
  });
}

}  // namespace cuda
}  // namespace CC_LEVEL
}  // namespace compcoll
