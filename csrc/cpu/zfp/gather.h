// Blocks of any number of bits to words in lanes, with AVX-512: get_lanes of stream.h without a loop over
// the lanes. A register holds as many whole blocks as surely fit, and one permutation of its 16-bit pieces
// brings each lane the pieces that its word begins in.
#pragma once
#include "stream.h"

#if defined(__AVX512BW__)
namespace compcoll {
namespace CC_LEVEL {
namespace zfp {

template <int NW, class L>
class BlockGather {
  using W = typename lanes<L>::word;
  static constexpr int N = lanes<L>::n, bits = 8 * sizeof(W), pieces = bits / 16;
  static constexpr int loads = NW == 1 ? 1 : NW == 2 ? 2 : 4, per_load = N / loads;

  int maxbits;
  bool fits = true;  // where blocks begin within a byte, the last of a register can end behind it
  alignas(64) uint16_t low[NW][32], high[NW][32];
  alignas(64) W shift[N];

 public:
  explicit BlockGather(int maxbits) : maxbits(maxbits) {
    for (int lane = 0; lane < N; lane++) {
      int begin = first_bit(lane / per_load) % 8 + lane % per_load * maxbits;
      shift[lane] = begin % 16;
      fits &= begin + maxbits <= 512;
      for (int j = 0; j < NW; j++)
        for (int i = 0; i < pieces; i++) {
          int piece = begin / 16 + j * pieces + i;
          low[j][lane * pieces + i] = piece % 32;
          // What the piece behind the word adds stands above everything else.
          high[j][lane * pieces + i] = (piece + 1) % 32;
        }
    }
  }

  // Whether the words of N blocks from bit `pos` on, a multiple of 8, can be had without reading too far.
  bool reaches(uint64_t nbytes, uint64_t pos) const {
    return fits && (pos + first_bit(loads - 1)) / 8 + 64 <= nbytes;
  }

  void get(const uint8_t* payload, uint64_t pos, L* words) const {
    __m512i rows[loads];
    for (int i = 0; i < loads; i++) rows[i] = _mm512_loadu_si512(payload + (pos + first_bit(i)) / 8);
    const L right = compcoll::CC_LEVEL::load<L>(shift), left = 16 - right;
    for (int j = 0; j < NW; j++) {
      // The pieces one further on, moved up by 16 bits less, fill what the shift leaves free.
      L begin = permuted(rows, low[j]), next = permuted(rows, high[j]);
      words[j] = begin >> right | (next >> W(bits - 16) << W(bits - 16)) << left;
    }
    words[NW - 1] &= W(low_bits(~uint64_t(0), maxbits - (NW - 1) * bits));
  }

 private:
  int first_bit(int load) const { return load * per_load * maxbits; }

  static L permuted(const __m512i* rows, const uint16_t* index) {
    const __m512i at = _mm512_load_si512(index);
    __m512i r = _mm512_permutexvar_epi16(at, rows[0]);
    for (int i = 1; i < loads; i++)
      r = _mm512_mask_permutexvar_epi16(r, (~0u >> (32 - 32 / loads)) << (32 / loads * i), at, rows[i]);
    return L(r);
  }
};

}  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
#endif
