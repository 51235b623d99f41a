// ZFP in 1 dimension on the GPU: a thread codes a block, a warp 32 blocks in a row. They fill exactly
// maxbits 32-bit words, so that no two warps share a word of the stream: there are no atomics on it, and it
// need not be cleared before.
#pragma once
#include "../cpu/zfp_extent.h"
#include "../zfp_quads.h"
#include "job.cuh"

namespace compcoll {
namespace CC_LEVEL {
namespace cuda {

using namespace zfp;

__constant__ constexpr QuadTables quad_source = make_quad_tables();

// The look-up tables in shared memory; those that encode are 32 words, one in each bank.
CC_HD const QuadTables& shared_tables() {
  constexpr uint32_t n = sizeof(QuadTables) / 4;
  __shared__ uint32_t words[n];
  for (uint32_t i = threadIdx.x; i < n; i += CC_CTA)
    words[i] = reinterpret_cast<const uint32_t*>(&quad_source)[i];
  __syncthreads();
  return *reinterpret_cast<const QuadTables*>(words);
}

struct Line {
  uint64_t blocks, words;  // 32-bit words of the payload, which ends at 64 bits
  uint32_t maxbits;

  CC_HD explicit Line(const Job& job) {
    blocks = (job.n + 3) / 4;
    maxbits = uint32_t(job.params[0]);
    words = (blocks * maxbits + 63) / 64 * 2;
  }
};

// Behind the end of the array stands what zfp pads with.
template <class E, class L>
CC_HD void load_block(const Job& job, uint64_t block, bool packed, L* a) {
  using S = typename E::Stored;
  const S* p = reinterpret_cast<const S*>(job.src) + 4 * block;
  uint64_t left = 4 * block < job.n ? job.n - 4 * block : 0;
  if (packed && left >= 4) {
    auto row = *reinterpret_cast<const Pack<S, 4>*>(p);
    for (int i = 0; i < 4; i++) a[i] = E::template widen<L>(row.v[i]);
  } else {
    for (uint32_t i = 0; i < 4; i++)
      a[i] = left ? E::template widen<L>(p[i < left ? i : i == 3 ? 0 : left - 1]) : L(0);
  }
}

// Overwrites the block's values, or adds to accumulators.
template <class E, bool Accumulate, class L>
CC_HD void store_block(const Job& job, uint64_t block, bool packed, const L* a) {
  using Real = typename Lane<L>::Real;
  using S = typename Choice<Accumulate, Real, typename E::Stored>::type;
  S* p = reinterpret_cast<S*>(job.dst) + 4 * block;
  uint64_t left = job.n - 4 * block;
  bool whole = packed && left >= 4;
  Pack<S, 4> row;
  if (Accumulate && whole) row = *reinterpret_cast<Pack<S, 4>*>(p);
  for (uint32_t i = 0; i < 4; i++) {
    auto narrow = E::narrow(a[i]);
    if constexpr (Accumulate) {
      if (!whole) row.v[i] = i < left ? p[i] : S(0);
      row.v[i] = add(row.v[i], bits_as<Real>(E::template widen<L>(narrow)));
    } else {
      row.v[i] = narrow;
    }
  }
  if (whole) *reinterpret_cast<Pack<S, 4>*>(p) = row;
  else for (uint32_t i = 0; i < 4; i++) if (i < left) p[i] = row.v[i];
}

// Of the bits of a block's i-th 32-bit word those that count.
CC_HD uint32_t cut(uint32_t word, uint32_t i, uint32_t maxbits) {
  if (32 * i >= maxbits) return 0;
  uint32_t keep = maxbits - 32 * i;
  return keep < 32 ? word & ((1u << keep) - 1) : word;
}

// The words of 32 blocks, N each, as one bit string: by way of shared memory unless a block is a word or two.
template <int N>
CC_HD void store_words(uint32_t* stream, uint64_t first, const Line& line, uint32_t* word) {
  __shared__ uint32_t shared[CC_WARPS][N + 1][32];
  const uint32_t lane = lane_id(), maxbits = line.maxbits;
  if (maxbits == 32) {
    if (first + lane < line.words) stream[first + lane] = word[0];
    return;
  }
  if (maxbits == 64 && N >= 2) {
    if (first + lane < line.blocks)
      reinterpret_cast<Pack<uint32_t, 2>*>(stream)[first + lane] = {{word[0], word[1 % N]}};
    return;
  }
  auto rows = shared[threadIdx.x / 32];
  for (uint32_t i = 0; i < N; i++) rows[i][lane] = cut(word[i], i, maxbits);
  rows[N][lane] = 0;
  __syncwarp();
  const uint64_t begin = first / 32 * maxbits;
  // The last warp also writes the zeros that end the stream.
  const uint64_t end = first + 32 < line.blocks ? begin + maxbits : line.words;
  for (uint32_t i = lane; begin + i < end; i += 32) {
    uint32_t block = 32 * i / maxbits, at = 32 * i - block * maxbits, filled = 0, out = 0;
    while (filled < 32 && block < 32) {
      out |= __funnelshift_r(rows[at / 32][block], rows[at / 32 + 1][block], at % 32) << filled;
      filled += maxbits - at;
      at = 0, block++;
    }
    stream[begin + i] = out;
  }
  __syncwarp();
}

template <int N>
CC_HD void load_words(const uint32_t* stream, uint64_t block, const Line& line, uint32_t* word) {
  const uint32_t maxbits = line.maxbits;
  if (maxbits == 32) {
    word[0] = stream[block];
    for (int i = 1; i < N; i++) word[i] = 0;
    return;
  }
  const uint64_t bit = block * maxbits, at = bit / 32;
  uint32_t low = stream[at];
  for (uint32_t i = 0; i < N; i++) {
    uint32_t high = at + i + 1 < line.words ? stream[at + i + 1] : 0;
    word[i] = cut(__funnelshift_r(low, high, uint32_t(bit % 32)), i, maxbits);
    low = high;
  }
}

template <class E, int NW>
CC_HD void zfp_encode(const Job& job) {
  using L = typename E::Word;
  constexpr int halves = sizeof(L) / 4;
  const Line line(job);
  if (4 * line.words > job.nbytes + slack) return;
  const QuadTables& tables = shared_tables();
  const bool packed = aligned(job.src, sizeof(Pack<typename E::Stored, 4>) < 16 ? 8 : 16);
  Extent<L> extent;
  for (uint64_t first = 32 * warp_id(); first < line.blocks; first += 32 * warp_count()) {
    L a[4], words[NW] = {}, magnitude = 0;
    load_block<E>(job, first + lane_id(), packed, a);
    for (int i = 0; i < 4; i++) {
      L m = a[i] & L(~L(0) >> 1);
      magnitude = m > magnitude ? m : magnitude;
    }
    extent.add_magnitude(magnitude);
    L e = exponent(magnitude), scale = quantise_scale(e);
    for (int i = 0; i < 4; i++) a[i] = quantise(a[i], scale);
    transform_forward<1>(a);
    for (int i = 0; i < 4; i++) a[i] = negabinary(a[i]);
    to_planes<1>(a);
    words[0] = magnitude != 0 ? e + e + 1 : L(0);
    L k = encode_quads<NW>(a, L(magnitude != 0 ? 0 : 4), int(line.maxbits), tables, words);
    extent.template add_error<1>(e, k, magnitude);
    uint32_t out[NW * halves];
    for (int i = 0; i < NW * halves; i++) out[i] = uint32_t(words[i / halves] >> (32 * (i % halves)));
    store_words<NW * halves>(reinterpret_cast<uint32_t*>(job.dst), first, line, out);
  }
  note_max(&job.result->extent[0], extent.largest);
  note_max(&job.result->extent[1], extent.smallest);
  note_max(&job.result->extent[2], extent.key);
}

// After all of the kernel before: status and bound.
template <class E>
CC_HD void zfp_finish(const Job& job) {
  using L = typename E::Word;
  if (thread_id()) return;
  Result& result = *job.result;
  Extent<L> extent;
  extent.largest = L(result.extent[0]);
  extent.smallest = L(result.extent[1]);
  extent.key = L(result.extent[2]);
  double bound = 0;
  int64_t status = judge<E, 1>(extent, &bound);
  const uint64_t nbytes = 4 * Line(job).words;
  result.nbytes = status ? status : nbytes > job.nbytes ? int64_t(TOO_LARGE) : int64_t(nbytes);
  result.bound = bound;
}

template <class E, int NW, bool Accumulate>
CC_HD void zfp_decode(const Job& job) {
  using L = typename E::Word;
  using F = Format<L>;
  constexpr int halves = sizeof(L) / 4;
  const QuadTables& tables = shared_tables();
  const Line line(job);
  const bool packed = aligned(job.dst, !Accumulate && sizeof(typename E::Stored) == 2 ? 8 : 16);
  for (uint64_t block = thread_id(); block < line.blocks; block += thread_count()) {
    uint32_t in[NW * halves];
    load_words<NW * halves>(reinterpret_cast<const uint32_t*>(job.src), block, line, in);
    L a[4] = {}, words[NW] = {};
    for (int i = 0; i < NW * halves; i++) words[i / halves] |= L(in[i]) << (32 * (i % halves));
    L e = (words[0] >> 1) & L(2 * F::bias + 1);
    L empty = (words[0] & 1) - 1;
    L zeros = decode_quads<NW>(words, int(line.maxbits), tables, a);
    to_planes<1>(a);
    for (int i = 0; i < 4; i++) a[i] = from_negabinary(shift_right(a[i], zeros) & ~empty);
    transform_inverse<1>(a);
    L scale = dequantise_scale(e);
    for (int i = 0; i < 4; i++) a[i] = dequantise(a[i], scale);
    store_block<E, Accumulate>(job, block, packed, a);
  }
}

}  // namespace cuda
}  // namespace CC_LEVEL
}  // namespace compcoll
