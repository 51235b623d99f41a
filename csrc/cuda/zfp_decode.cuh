// Decoding ZFP in 1 dimension on the GPU: a thread has a block.
#pragma once
#include "zfp.cuh"
#include "zfp_read.cuh"

namespace compcoll {
namespace CC_LEVEL {
namespace cuda {

__device__ constexpr ReadTable read_source = make_read_table();

// Loads N words, the last of which ends at the block's end. Bits before the block belong to others, or are 0.
template <int N>
CC_HD void load_words(const uint32_t* stream, uint64_t block, const Line& line, uint32_t* word) {
  const int64_t bit = int64_t((block + 1) * line.maxbits) - 32 * N, at = bit >> 5;
  const uint32_t shift = uint32_t(bit) & 31;
  uint32_t low = at < 0 ? 0 : stream[at];
  for (int i = 0; i < N; i++) {
    const bool known = i + 1 < N ? at + i + 1 >= 0 : shift != 0;
    const uint32_t high = known ? stream[at + i + 1] : 0;
    word[i] = __funnelshift_r(low, high, shift);
    low = high;
  }
}

// Like load_words, for blocks of exactly N words.
template <int N>
CC_HD void load_exactly(const uint32_t* stream, uint32_t block, uint32_t* word) {
  const auto row = reinterpret_cast<const Pack<uint32_t, N>*>(stream)[block];
  for (int i = 0; i < N; i++) word[i] = row.v[i];
}

// 32 bits starting at bit `at`, which is the same for all threads.
template <int N>
CC_HD uint32_t bits_from(const uint32_t* word, uint32_t at) {
  uint32_t r = 0;
  for (uint32_t i = 0; i < N; i++)
    if (at / 32 == i) r = __funnelshift_r(word[i], i + 1 < N ? word[i + 1] : 0, at % 32);
  return r;
}

// exact: a block has N words. whole: all of its values are present, and can be stored at once.
template <class E, int N, bool exact, bool whole, bool Accumulate>
CC_HD void decode_block(const Job& job, const Line& line, uint32_t block, bool packed, const ReadTable& table,
                        uint32_t* word) {
  using L = typename E::Word;
  using F = Format<L>;
  const uint32_t unused = exact ? 0 : 32 * N - line.maxbits, before = unused + F::header;
  const uint32_t header = bits_from<N>(word, unused), some = 0 - (header & 1);
  const L e = header >> 1 & L(2 * F::bias + 1);
  for (uint32_t i = 0; i < N; i++) {
    const uint32_t known = before <= 32 * i ? ~0u : before < 32 * i + 32 ? ~0u << (before % 32) : 0;
    word[i] &= some & known;
  }
  L a[4];
  read_planes<L, N>(word, before, table, a);
  for (int i = 0; i < 4; i++) a[i] = from_negabinary(a[i]);
  transform_inverse<1>(a);
  const L scale = dequantise_scale(e);
  for (int i = 0; i < 4; i++) a[i] = dequantise(a[i], scale);
  auto out = reinterpret_cast<Target<E, Accumulate>*>(job.dst) + 4 * uint64_t(block);
  if constexpr (whole) store_row<E, Accumulate>(out, 4, true, a);
  else store_row<E, Accumulate>(out, job.n - 4 * uint64_t(block), packed, a);
}

// Blocks of exactly N words, whose checksum is computed on the way; blocks of other sizes have a separate
// kernel for it.
template <class E, int N, bool Accumulate>
CC_HD void decode_exactly(const Job& job, const Line& line, const ReadTable& table) {
  const bool packed = aligned(job.dst, !Accumulate && sizeof(typename E::Stored) == 2 ? 8 : 16);
  const uint32_t whole = packed ? uint32_t(job.n / 4) : 0, blocks = uint32_t(line.blocks);
  const uint32_t stride = uint32_t(thread_count<zfp_threads>());
  auto stream = reinterpret_cast<const uint32_t*>(job.src);
  Checksum sum(job);
  const auto load = [&](uint32_t block, uint32_t* word) {
    load_exactly<N>(stream, block, word);
    for (int i = 0; i < N; i++) sum.add(word[i], N * block + i);
  };
  uint32_t block = uint32_t(thread_id<zfp_threads>()), word[N];
  for (; block < whole; block += stride) {
    load(block, word);
    decode_block<E, N, true, true, Accumulate>(job, line, block, true, table, word);
  }
  for (; block < blocks; block += stride) {
    load(block, word);
    decode_block<E, N, true, false, Accumulate>(job, line, block, packed, table, word);
  }
  // A payload ends at a multiple of 64 bits.
  if (thread_id<zfp_threads>() == 0 && N * blocks < line.words) sum.add(stream[N * blocks], N * blocks);
  sum.note(job);
}

template <class E, int NW, bool exact, bool Accumulate>
CC_HD void zfp_decode(const Job& job) {
  constexpr int N = NW * sizeof(typename E::Word) / 4;
  const ReadTable& table = shared_table(read_source);
  const Line line(job);
  if constexpr (exact) {
    decode_exactly<E, N, Accumulate>(job, line, table);
  } else {
    const bool packed = aligned(job.dst, !Accumulate && sizeof(typename E::Stored) == 2 ? 8 : 16);
    for (uint64_t block = thread_id<zfp_threads>(); block < line.blocks; block += thread_count<zfp_threads>()) {
      uint32_t word[N];
      load_words<N>(reinterpret_cast<const uint32_t*>(job.src), block, line, word);
      decode_block<E, N, false, false, Accumulate>(job, line, uint32_t(block), packed, table, word);
    }
  }
}

}  // namespace cuda
}  // namespace CC_LEVEL
}  // namespace compcoll
