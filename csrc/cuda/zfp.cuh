// ZFP in 1 dimension on the GPU: a thread codes a block, a warp 32 adjacent blocks. These fill exactly
// maxbits 32-bit words, so no two warps share a word of the stream: it needs no atomics, and need not be
// cleared before.
#pragma once
#include "../cpu/zfp/extent.h"
#include "checksum.cuh"
#include "zfp_long.cuh"

namespace compcoll {
namespace CC_LEVEL {
namespace cuda {

using namespace zfp;

__device__ constexpr PairTable pair_source = make_pair_table();

// Threads in a block of threads: many, because each such block loads the table.
constexpr uint32_t zfp_threads = 512;

// A table's copy in shared memory, where the lanes of a warp can read different entries at once.
template <class Table>
CC_HD const Table& shared_table(const Table& source) {
  using Row = Pack<uint32_t, 4>;
  constexpr uint32_t n = sizeof(Table) / sizeof(Row);
  static_assert(sizeof(Table) % sizeof(Row) == 0 && alignof(Table) == alignof(Row), "copied in rows");
  struct Rows { Row row[n]; };
  CC_SHARED(Rows, copy);
#pragma unroll 2
  for (uint32_t i = threadIdx.x; i < n; i += zfp_threads)
    copy.row[i] = reinterpret_cast<const Row*>(&source)[i];
  __syncthreads();
  return *reinterpret_cast<const Table*>(copy.row);
}

struct Line {
  uint64_t blocks, words;  // 32-bit words of the payload, whose size is a multiple of 64 bits
  uint32_t maxbits;

  CC_HD explicit Line(const Job& job) {
    blocks = (job.n + 3) / 4;
    maxbits = uint32_t(job.params[0]);
    words = (blocks * maxbits + 63) / 64 * 2;
  }
};

// After the end of the array come zfp's padding values.
template <class E, bool whole, class L>
CC_HD void load_block(const Job& job, uint32_t block, L* a) {
  using S = typename E::Stored;
  if constexpr (whole) {
    const auto row = reinterpret_cast<const Pack<S, 4>*>(job.src)[block];
    for (int i = 0; i < 4; i++) a[i] = E::template widen<L>(row.v[i]);
  } else {
    const uint64_t begin = 4 * uint64_t(block), left = begin < job.n ? job.n - begin : 0;
    const S* p = reinterpret_cast<const S*>(job.src) + begin;
    for (uint32_t i = 0; i < 4; i++)
      a[i] = left ? E::template widen<L>(p[i < left ? i : i == 3 ? 0 : left - 1]) : L(0);
  }
}

// Destination of a row: elements, or accumulators to which they are added.
template <class E, bool Accumulate>
using Target =
    typename Choice<Accumulate, typename LaneTypes<typename E::Word>::Real, typename E::Stored>::type;

// Stores the first `left` of 4 values, or adds them. packed: they can be stored at once.
template <class E, bool Accumulate, class L>
CC_HD void store_row(Target<E, Accumulate>* p, uint64_t left, bool packed, const L* a) {
  using S = Target<E, Accumulate>;
  const bool whole = packed && left >= 4;
  Pack<S, 4> row;
  if (Accumulate && whole) row = *reinterpret_cast<Pack<S, 4>*>(p);
  for (uint32_t i = 0; i < 4; i++) {
    auto narrow = E::narrow(a[i]);
    if constexpr (Accumulate) {
      if (!whole) row.v[i] = i < left ? p[i] : S(0);
      row.v[i] = add(row.v[i], bits_as<S>(E::template widen<L>(narrow)));
    } else {
      row.v[i] = narrow;
    }
  }
  if (whole) *reinterpret_cast<Pack<S, 4>*>(p) = row;
  else
    for (uint32_t i = 0; i < 4; i++)
      if (i < left) p[i] = row.v[i];
}

// The bits of a block's i-th 32-bit word that are below maxbits.
CC_HD uint32_t cut(uint32_t word, uint32_t i, uint32_t maxbits) {
  if (32 * i >= maxbits) return 0;
  uint32_t keep = maxbits - 32 * i;
  return keep < 32 ? word & ((1u << keep) - 1) : word;
}

// The words of 32 blocks, N each, as one bit string.
template <int N>
CC_HD void pack_words(uint32_t* stream, uint32_t first, const Line& line, const uint32_t* word,
                      Checksum& sum) {
  struct Rows { uint32_t row[zfp_threads / 32][N + 1][32]; };
  CC_SHARED(Rows, shared);
  const uint32_t lane = lane_id(), maxbits = line.maxbits;
  auto rows = shared.row[threadIdx.x / 32];
  for (uint32_t i = 0; i < N; i++) rows[i][lane] = cut(word[i], i, maxbits);
  rows[N][lane] = 0;
  __syncwarp();
  const uint64_t begin = first / 32 * uint64_t(maxbits);
  // The last warp also writes the zeros that end the stream.
  const uint64_t end = first + 32 < uint32_t(line.blocks) ? begin + maxbits : line.words;
  for (uint32_t i = lane; begin + i < end; i += 32) {
    uint32_t block = 32 * i / maxbits, at = 32 * i - block * maxbits, filled = 0, out = 0;
    while (filled < 32 && block < 32) {
      out |= __funnelshift_r(rows[at / 32][block], rows[at / 32 + 1][block], at % 32) << filled;
      filled += maxbits - at;
      at = 0, block++;
    }
    stream[begin + i] = out;
    sum.add(out, begin + i);
  }
  __syncwarp();
}

// Like pack_words, for blocks of exactly N words, which need no packing. all: true if there are 32 blocks.
template <int N>
CC_HD void store_words(uint32_t* stream, uint32_t block, bool all, const Line& line, const uint32_t* word,
                       Checksum& sum) {
  Pack<uint32_t, N> row;
  for (int i = 0; i < N; i++) row.v[i] = word[i];
  if (!all && N * uint64_t(block) >= line.words) return;
  reinterpret_cast<Pack<uint32_t, N>*>(stream)[block] = row;
  for (int i = 0; i < N; i++) sum.add(word[i], N * block + i);
}

// zfp.h's transform, and negabinary conversion except for its final XOR. Adding the mask is merged with the
// transform.
template <class L>
CC_HD void forward(L* a) {
  constexpr L mask = L(~L(0)) / 3 * 2;
  L x = half(a[0] + a[3]), w = a[3] - x, z = half(a[2] + a[1]), y = a[1] - z;
  x = half(x + z);
  a[0] = x + mask;
  a[2] = z - x + mask;
  x = half(w + y), y -= x, w = x + half(y);
  a[1] = y - half(w) + mask;
  a[3] = w + mask;
}

// Encodes blocks `first` to `first + 31`. exact: a block has exactly N 32-bit words, not just up to that many
// bits. whole: all values are present, and a block's can be loaded at once.
template <class E, int N, bool exact, bool whole>
CC_HD void encode_group(const Job& job, const Line& line, uint32_t first, const PairTable& table,
                        Extent<typename E::Word>& extent, Checksum& sum) {
  using L = typename E::Word;
  using F = Format<L>;
  const uint32_t block = first + lane_id();
  L a[4];
  load_block<E, whole>(job, block, a);
  const L magnitude = larger_magnitude(larger_magnitude(a[0], a[1]), larger_magnitude(a[2], a[3]));
  extent.add_magnitude(magnitude);
  const L e = exponent(magnitude);
  const L scale = quantise_scale(L(1)) - (magnitude & (L(2 * F::bias + 1) << F::mantissa));
  for (int i = 0; i < 4; i++) a[i] = quantise(a[i], scale);
  forward(a);
  // Magnitudes below the header are zeros, or values that zfp cannot represent.
  const L some = 2 * (magnitude >> F::mantissa) + 3, header = magnitude < some ? magnitude : some;
  const uint32_t maxbits = exact ? 32 * N : line.maxbits;
  uint32_t out[N] = {};
  Coded coded;
  if constexpr (N <= 2) {
    uint32_t high[4];
    for (int i = 0; i < 4; i++) high[i] = uint32_t(a[i] >> (F::bits - 32));
    constexpr int sure = exact ? sure_pairs(N, F::header) : -1;
    coded = encode_short<N, sure>(high, maxbits - F::header, table, out);
    if (!exact) move_down<N>(out, 32 * N - maxbits);
  } else {
    coded = encode_long<N>(a, F::header, maxbits - F::header, table, out);
  }
  out[0] |= uint32_t(header);
  const uint32_t planes = 2 * coded.pairs - coded.dropped;
  if (exact) {  // at least 5 planes are complete
    const L key = e + (F::bits - planes);
    extent.key = key > extent.key ? key : extent.key;
  } else {
    extent.template add_error<1>(e, L(F::bits - planes), magnitude);
  }
  auto stream = reinterpret_cast<uint32_t*>(job.dst);
  if constexpr (exact) store_words<N>(stream, block, whole, line, out, sum);
  else pack_words<N>(stream, first, line, out, sum);
}

// An array has less than 2^32 bytes.
template <class E, int N, bool exact>
CC_HD void encode_groups(const Job& job, const Line& line, const PairTable& table) {
  const bool rows = aligned(job.src, sizeof(Pack<typename E::Stored, 4>) < 16 ? 8 : 16);
  const uint32_t whole = rows ? uint32_t(job.n / 128 * 32) : 0, blocks = uint32_t(line.blocks);
  const uint32_t stride = 32 * uint32_t(warp_count<zfp_threads>());
  uint32_t first = 32 * uint32_t(warp_id<zfp_threads>());
  Extent<typename E::Word> extent;
  Checksum sum(job);
  for (; first < whole; first += stride)
    encode_group<E, N, exact, true>(job, line, first, table, extent, sum);
  for (; first < blocks; first += stride)
    encode_group<E, N, exact, false>(job, line, first, table, extent, sum);
  note_max(&job.result->extent[0], extent.largest);
  note_max(&job.result->extent[1], extent.smallest);
  note_max(&job.result->extent[2], extent.key);
  sum.note(job);
}

// After all blocks: status and bound. Layout: the array's blocks and the payload's words.
template <class E, int D, class Layout>
CC_HD void finish(const Job& job) {
  using L = typename E::Word;
  Result& result = *job.result;
  Extent<L> extent;
  extent.largest = L(result.extent[0]);
  extent.smallest = L(result.extent[1]);
  extent.key = L(result.extent[2]);
  double bound = 0;
  int64_t status = judge<E, D>(extent, &bound);
  const uint64_t nbytes = 4 * Layout(job).words;
  result.nbytes = status ? status : nbytes > job.nbytes ? int64_t(TOO_LARGE) : int64_t(nbytes);
  result.bound = bound;
}

// NW: number of words of E that hold a block.
template <class E, int NW, bool exact>
CC_HD void zfp_encode(const Job& job) {
  const PairTable& table = shared_table(pair_source);
  const Line line(job);
  if (4 * line.words <= job.nbytes + slack)
    encode_groups<E, NW * sizeof(typename E::Word) / 4, exact>(job, line, table);
  complete(job, [&] { finish<E, 1, Line>(job); });
}

}  // namespace cuda
}  // namespace CC_LEVEL
}  // namespace compcoll
