// ZFP's decoder for 2-D blocks with a handful of bits behind the header: as zfp_tiny_line.h.
#pragma once
#include "zfp_blocks.h"
#include "zfp_tiny_line.h"

namespace compcoll {
namespace CC_LEVEL {
namespace zfp {

// The 16 integers for each of the 2^body strings of bits.
template <class W>
class TinySquares {
  using F = Format<W>;
  static constexpr int N = vector_nbytes / sizeof(W), most = 1 << tiny_bits;

  alignas(64) W values_[most][16];

 public:
  using L = vec<W, N>;

  explicit TinySquares(int body) {
    const int n = 1 << body;
    uint8_t payload[most * (F::header + tiny_bits) / 8 + 8];
    StreamWriter out{payload};
    for (int i = 0; i < n; i++) {
      constexpr uint64_t e = F::bias + F::bits - 2;  // the scale is 1
      out.put(2 * e + 1, F::header);
      out.put(uint64_t(i), body);
    }
    out.finish();
    Args args = {};
    args.ndim = 2, args.shape[0] = 4, args.shape[1] = 4 * n;
    alignas(64) W rows[16 * most];
    auto to = reinterpret_cast<uint8_t*>(rows);
    decode_blocks<Whole<W>, 2, false>(Grid(args, 1), F::header + body, payload, out.dst - payload, to);
    for (int i = 0; i < n; i++)
      for (int k = 0; k < 16; k++) values_[i][k] = rows[k / 4 * 4 * n + 4 * i + k % 4];
  }

  // Calls use(k, v) with N values, from the k-th on, of one block.
  template <class Use>
  void scale(uint32_t index, W scale, Use use) const {
    using Real = typename Lane<L>::Real;
    const auto factor = bits_as<typename F::Real>(scale);
    for (int k = 0; k < 16; k += N) use(k, bits_as<L>(load<Real>(values_[index] + k) * factor));
  }
};

template <class E>
void decode_tiny_squares(const Grid& grid, int maxbits, const uint8_t* payload, uint64_t nbytes,
                         uint8_t* dst) {
  using W = typename E::Word;
  using F = Format<W>;
  using Stored = typename E::Stored;
  const TinySquares<W> table(maxbits - F::header);
  const uint32_t body = (1u << (maxbits - F::header)) - 1;
  uint64_t pos = 0;
  for (uint64_t y = 0; y < grid.n[1]; y += 4)
    for (uint64_t x = 0; x < grid.n[0]; x += 4, pos += maxbits) {
      const uint64_t last = nbytes - 8, at = pos / 8 < last ? pos / 8 : last;
      const uint64_t bits = load<uint64_t>(payload + at) >> (pos - 8 * at);
      const W e = (bits >> 1) & (2 * F::bias + 1);
      alignas(64) Stored values[16];
      const uint32_t index = uint32_t(bits >> F::header) & body & -uint32_t(bits & 1);
      table.scale(index, dequantise_scale(e),
                  [&](int k, auto v) { compcoll::CC_LEVEL::store(values + k, E::narrow(v)); });
      uint8_t* to = dst + (y * grid.n[0] + x) * sizeof(Stored);
      const uint64_t ny = grid.n[1] - y, nx = grid.n[0] - x, stride = grid.n[0] * sizeof(Stored);
      if (nx >= 4 && ny >= 4)
        for (int r = 0; r < 4; r++) memcpy(to + r * stride, values + 4 * r, sizeof(Stored[4]));
      else
        for (uint64_t r = 0; r < 4 && r < ny; r++)
          memcpy(to + r * stride, values + 4 * r, (nx < 4 ? nx : 4) * sizeof(Stored));
    }
}

}  // namespace zfp
}  // namespace CC_LEVEL
}  // namespace compcoll
