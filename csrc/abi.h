// The interface between Python and every CPU codec: a table of five functions per codec, with one such table
// per instruction-set level. A codec never allocates, never throws, and never accesses a byte outside its
// buffers.
#pragma once
#include "config.h"

namespace compcoll {

// Element types, by their codes in the frame header. compcoll/core/dtypes.py has the same list.
enum DType : uint32_t {
  INT8 = 1,
  UINT8,
  INT16,
  UINT16,
  INT32,
  UINT32,
  INT64,
  UINT64,
  FLOAT16,
  BFLOAT16,
  FLOAT32,
  FLOAT64,
  COMPLEX64,
  COMPLEX128,
};

CC_HD uint32_t itemsize(uint32_t dtype) {
  constexpr uint8_t sizes[] = {0, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 8, 16};
  return dtype < sizeof sizes ? sizes[dtype] : 0;
}

CC_HD bool is_complex(uint32_t dtype) { return dtype == COMPLEX64 || dtype == COMPLEX128; }

// The bound of |x - x'| from that of real numbers: if these are parts of complex numbers, multiplied by the
// square root of 2, rounded up.
CC_HD double modulus_bound(bool parts, double bound) { return parts ? bound * 0x1.6a09e667f3bcep+0 : bound; }

// Status codes that a codec returns instead of a byte count. compcoll/core/_cpu.pyx has the same names.
enum Status : int64_t {
  NONFINITE = -1,        // encode: the block has a NaN or an infinity, and needs another codec
  UNREPRESENTABLE = -2,  // encode: a value that the codec cannot represent
  TOO_LARGE = -3,        // encode: the payload would not fit into `capacity`
  BAD_STREAM = -4,       // decode: these bytes are no valid stream for this codec and these arguments
  UNSUPPORTED = -5,      // the codec does not support this dtype, shape or parameter
};

struct Args {
  uint32_t dtype;
  uint32_t ndim;         // 1 to 3
  uint64_t shape[3];     // C order, slowest first; unused dimensions are 1
  uint64_t params[2];    // the codec's two words in the frame header
  uint64_t capacity;     // encode, add: bytes available at dst
  uint32_t acc_dtype;    // decode_add: type of dst (FLOAT32 for 16-bit floats, else dtype)
  double bound;  // encode, add: output, largest absolute error of any real number; 0 if exact, NaN if unknown
  const void* base;  // codecs of differences: nbytes() bytes that both sides have; null if there are none
  // decode, reconstruct: dst, or `values`, is large and not read soon, so a codec may write past the cache.
  bool past_cache = false;

  CC_HD uint64_t size() const { return shape[0] * shape[1] * shape[2]; }
  CC_HD uint64_t nbytes() const { return size() * itemsize(dtype); }
};

struct Codec {
  const char* name;
  // src: args->nbytes() bytes, any alignment. Returns the payload's size, or a Status. May update
  // args->params with values that depend on the data, such as a bound made absolute.
  int64_t (*encode)(Args* args, const void* src, void* dst);
  // dst: args->nbytes() bytes. Returns 0 or a Status. Safe for every input, however damaged.
  int64_t (*decode)(const Args* args, const void* payload, uint64_t nbytes, void* dst);
  // dst[i] += decoded[i], with dst of args->acc_dtype. Null: use decode, then add.
  int64_t (*decode_add)(const Args* args, const void* payload, uint64_t nbytes, void* dst);
  // The sum of two payloads with equal arguments, as a payload, without decoding. Null: not possible.
  int64_t (*add)(Args* args, const void* a, uint64_t a_nbytes, const void* b, uint64_t b_nbytes, void* dst);
  // Like encode, and writes to `values`, args->nbytes() bytes, what decode would return, bit for bit.
  // `values` may be src itself, which is unchanged if a Status is returned; otherwise they do not overlap.
  // If it is null or returns UNSUPPORTED, the caller uses encode, then decode.
  int64_t (*reconstruct)(Args* args, const void* src, void* dst, void* values);
};

}  // namespace compcoll
