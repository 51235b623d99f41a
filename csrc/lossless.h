// Choices and samples of `lossless`, for the callers of csrc/cpu/lossless.cpp.
#pragma once
#include "abi.h"

namespace compcoll {

// Ordinals of the codecs.
enum LosslessChoice : uint64_t { CHOSE_RAW, CHOSE_MPC, CHOSE_FLOAT };

constexpr uint32_t sample_nbytes = 32768;  // one chunk of `float`, eight or four blocks of `mpc`
constexpr uint32_t sample_share = 32;      // at most 1 in so many bytes of a large array are tried

// The sample of an array: `n` pieces of `piece` bytes, whole blocks of `mpc` in words of 4 or 8 bytes, evenly
// spread, with starts `step` bytes apart.
struct LosslessSample {
  uint64_t piece, n, step;

  LosslessSample(uint64_t nbytes, uint32_t word_nbytes) {
    piece = 1024 * word_nbytes;
    n = nbytes / (piece * sample_share);
    if (n > sample_nbytes / piece) n = sample_nbytes / piece;
    if (n == 0) n = 1;
    if (nbytes < piece) piece = nbytes;
    step = n > 1 ? (nbytes - piece) / (n - 1) / 16 * 16 : 0;
  }
  uint64_t nbytes() const { return n * piece; }
};

}  // namespace compcoll
