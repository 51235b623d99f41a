// ZFP's plane decoder for 3-D blocks with AVX-512: from the payload to the planes of N blocks.
#pragma once
#include "tiles.h"
#include "transform.h"
#include "windows.h"

#if defined(__AVX512BW__)
namespace compcoll {
namespace CC_LEVEL {
namespace zfp {

// Decodes 16 or 32 blocks in parallel, because one vector's dependency chain would leave the core idle.
template <class L>
struct WindowCoder {
  using W = typename lanes<L>::word;
  using F = Format<W>;
  static constexpr int bits = 8 * sizeof(W), blocks = bits == 64 ? 16 : 32;
  static constexpr int groups = blocks / lanes<L>::n, vectors = blocks / 8;
  int maxbits;

  // Planes and e of `count` blocks starting at bit `begin`, group by group; shifted up as by decode_quads.
  // beside(i): other work before the i-th plane.
  template <class Beside>
  void decode(const uint8_t* payload, uint64_t nbytes, uint64_t begin, int count, L planes[][64], L* e,
              L* zeros, Beside beside) const {
    uint8_t copy[blocks * 64 * sizeof(typename F::Int) + 32];
    payload = with_room(payload, nbytes, begin, uint64_t(blocks) * maxbits, copy);
    const int first = begin % 8;
    auto windows = [&](int i) {
      const __m512i lane = _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7);
      __m512i block = _mm512_add_epi64(lane, _mm512_set1_epi64(8 * i)), stop = _mm512_set1_epi64(count);
      __m512i next = _mm512_add_epi64(block, _mm512_set1_epi64(1));
      return Windows(payload, bit(_mm512_min_epi64(block, stop), first),
                     bit(_mm512_min_epi64(next, stop), first));
    };
    Windows all[] = {windows(0), windows(1), windows(vectors - 2), windows(vectors - 1)};
    __m512i skipped[4], exponents[4];
    for (int i = 0; i < vectors; i++) exponents[i] = all[i].template start<F>(skipped[i]);
    for (int g = 0; g < groups; g++) e[g] = lanes_of(exponents, g), zeros[g] = lanes_of(skipped, g);
    const int k = read_planes(all, planes, beside);
    for (int g = 0; g < groups; g++) clear(planes[g], k);
  }

 private:
  static bool more(const Windows* all) {
    uint32_t live = all[0].live() | all[1].live();
    if (vectors > 2) live |= all[2].live() | all[3].live();
    return live != 0;
  }

  // Reads planes while any block has more; returns the last plane.
  template <class Beside>
  int read_planes(Windows* all, L planes[][64], Beside beside) const {
    int k = bits;
    if constexpr (bits == 64) {
      while (k > 0 && more(all)) {
        beside(bits - k);
        k--;
        for (int i = 0; i < vectors; i++) all[i].step(reinterpret_cast<uint64_t*>(&planes[i][k]));
      }
    } else {  // in two halves, for to_planes
      alignas(64) uint64_t whole[bits][blocks];
      while (k > 0 && more(all)) {
        beside(bits - k);
        k--;
        for (int i = 0; i < vectors; i++) all[i].step(whole[k] + 8 * i);
      }
      for (int i = bits - 1; i >= k; i--)
        for (int g = 0; g < groups; g++) {
          const L* pair = reinterpret_cast<const L*>(whole[i]) + 2 * g;
          planes[g][i] = shuffle(pair[0], pair[1], Every<2, 0>());
          planes[g][i + 32] = shuffle(pair[0], pair[1], Every<2, 1>());
        }
    }
    return k;
  }

  static void clear(L* planes, int k) {
    while (k > 0) {
      planes[--k] = L{};
      if (bits == 32) planes[k + 32] = L{};
    }
  }

  __m512i bit(__m512i block, int first) const {
    return _mm512_add_epi64(_mm512_mullo_epi64(block, _mm512_set1_epi64(maxbits)), _mm512_set1_epi64(first));
  }

  static L lanes_of(const __m512i* v, int g) {
    if constexpr (bits == 64) return L(v[g]);
    else return shuffle(L(v[2 * g]), L(v[2 * g + 1]), Every<2, 0>());
  }
};

}  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
#endif
