// Destination of a decoder's values, a piece at a time: stored in the array, or added to it while the piece
// is still in the first-level cache.
#pragma once
#include "../accumulate.h"

namespace compcoll {
namespace CC_LEVEL {

struct StoreSink {
  uint8_t* dst;
  uint8_t* room(uint64_t at) { return dst + at; }
  void done(uint64_t, uint64_t) {}
};

// For pieces of at most `largest` bytes that begin and end at element boundaries.
template <uint32_t largest>
struct AddSink {
  const Args* args;
  uint8_t* dst;
  alignas(64) uint8_t piece[largest];

  AddSink(const Args* args, void* dst) : args(args), dst(static_cast<uint8_t*>(dst)) {}
  uint8_t* room(uint64_t) { return piece; }
  void done(uint64_t at, uint64_t nbytes) {
    uint32_t from = itemsize(args->dtype), to = itemsize(args->acc_dtype);
    accumulate(args->dtype, args->acc_dtype, piece, dst + at / from * to, nbytes / from);
  }
};

inline bool can_accumulate(const Args* args) {
  return accumulate(args->dtype, args->acc_dtype, nullptr, nullptr, 0);
}

}  // namespace CC_LEVEL
}  // namespace compcoll
