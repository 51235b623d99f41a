// Blocks to frames and back: how one operation uses the codecs of csrc/abi.h.
#pragma once
#include <atomic>
#include <limits>
#include <vector>

#include "bases.h"
#include "cuda.h"
#include "frame.h"
#include "layout.h"
#include "pool.h"
#include "schedule.h"

namespace compcoll {
namespace engine {

// A frame in scratch memory. A frame without data is poisoned: something that it depends on failed.
struct Frame {
  uint8_t* memory = nullptr;
  uint64_t room = 0;  // bytes requested from the allocator; 0 if it does not own the memory
  Allocator* allocator = nullptr;  // null: the pool
  uint64_t nbytes = 0;  // of the whole frame
  Header header = {};
  bool settled = false;  // true if encoding has already written the decoded values where it was asked to
  Gpu* gpu = nullptr;  // null: in host memory
  bool lent = false;  // memory of another process
  uint64_t came = 0;  // bytes of the message that carried it
  bool checked = true;  // false if it has no checksum, as in memory that processes share

  bool poisoned() const { return !nbytes; }
  double bound() const { return nbytes ? header.bound : 0; }
};

// Kinds of errors; compcoll/core/frames.pxi and compcoll/engine/_engine.pyx turn them into exceptions.
enum class Problem : int32_t {
  NONE,
  HEADER,
  CHECKSUM,
  PAYLOAD,
  MISMATCH,
  POISONED,
  MPI,
  CALLBACK,
  MEMORY,
  TIMEOUT,
  INTERRUPTED,
  BASE,
  DEVICE,
  MESSAGES,  // another rank has sent more or fewer messages than this one expects
  REFUSED,  // another rank has given up the call
};

struct Error {
  Problem problem = Problem::NONE;
  int64_t status = 0;  // HEADER: a Damage; PAYLOAD: the codec's; MPI: the error's code
  uint64_t expected = 0;  // MISMATCH: number of elements, and their type
  uint32_t expected_dtype = 0;
  Header header = {};  // of the frame that was read
  uint8_t bytes[HEADER_NBYTES] = {};  // HEADER: the bytes found in its place
  uint64_t available = 0;
  DeviceFault fault;  // DEVICE

  explicit operator bool() const { return problem != Problem::NONE; }
};

// Codecs outside the table. They return what the functions of csrc/abi.h return, or FAILED if `context` has
// kept an exception.
struct Callbacks {
  static constexpr int64_t FAILED = INT64_MIN;
  void* context = nullptr;
  // Fills in the header's codec, params and bound; `dst` has room for SLACK bytes more than `src`.
  int64_t (*encode)(void* context, uint64_t attempt, Header* header, const void* src, void* dst) = nullptr;
  int64_t (*decode)(void* context, const Frame& frame, void* dst) = nullptr;
};

// The codecs to try in turn for a block.
struct Attempt {
  static constexpr int32_t CHOOSE = -1, CALLBACK = -2;
  int32_t codec;  // index in the table, or one of the above; `lossless` chooses a codec by the data
  uint64_t params[3][2];  // for blocks of 1, 2 and 3 dimensions
};

// Seconds per byte of values, by kind of operation: a recent minimum, since other threads may have shared the
// core.
class Pace {
 public:
  static constexpr int n_kinds = ADD + 1;
  // Seconds for operations of a kind on `nbytes` bytes in all; NaN if none has been timed.
  double seconds(int kind, uint64_t nbytes) const { return nbytes ? of_byte_[kind] * double(nbytes) : 0; }
  void note(int kind, double seconds, uint64_t nbytes) {
    const double of_byte = seconds / double(nbytes), least = of_byte_[kind];
    of_byte_[kind] = of_byte > least ? least + (of_byte - least) * rise : of_byte;
  }

 private:
  static constexpr double rise = 1.0 / 64, unknown = std::numeric_limits<double>::quiet_NaN();
  std::atomic<double> of_byte_[n_kinds] = {unknown, unknown, unknown, unknown};
};

struct Coding {
  const Level* const* level = nullptr;  // the level in use
  uint32_t dtype = 0;
  bool lossless = true;
  bool parts = false;  // true if the real numbers are parts of complex ones, to whose errors the bounds apply
  bool plain = false;  // true if frames have no checksum, like MPI's own messages
  std::vector<Attempt> attempts;
  Callbacks callbacks;
  Pace* pace = nullptr;  // shared by all calls with this codec; may be null
};

// The type in which values are summed.
constexpr uint32_t wide(uint32_t dtype) {
  return dtype == FLOAT16 || dtype == BFLOAT16 ? uint32_t(FLOAT32) : dtype;
}

// A block's memory, with a shape as in BlockRef. With a layout, `data` is the layout's origin and `first` the
// number of packed bytes before the block; only csrc/engine/dense.h accepts such a span.
struct Span {
  uint8_t* data;
  uint64_t n;
  uint32_t dtype;
  uint64_t plane = 0, row = 0;
  const Layout* layout = nullptr;
  uint64_t first = 0;
  bool past_cache = false;  // true if it is written once and is too large to stay in the cache

  uint64_t nbytes() const { return n * itemsize(dtype); }
  uint32_t ndim() const { return !row ? 1 : plane == row ? 2 : 3; }
  // Dimension i of `ndim`, 1 of others.
  uint64_t dim(uint32_t i) const {
    if (i == 0) return row ? n / plane : n;
    return !row || i > 2 || (i == 2 && plane == row) ? 1 : i == 1 && plane != row ? plane / row : row;
  }
};

// Destination of the values that a frame decodes to, written by its encoder; none if `data` is null.
struct Values {
  Values(uint8_t* data = nullptr, bool past_cache = false) : data(data), past_cache(past_cache) {}
  uint8_t* data;
  bool past_cache;
};

class Coder {
 public:
  // `terms`: number of terms of the sums that frames are added into; 0 if there are none.
  Coder(const Coding& coding, Pool& pool, int32_t terms = 0)
      : coding_(coding), level_(**coding.level), pool_(pool), terms_(terms) {}

  // `into` may be the block itself; its data are null if the decoded values are not needed. With a `base`,
  // encodes the differences to the base's values, and keeps the new values in it.
  Error encode(Span block, double carried, Span into, Frame* frame, Base* base = nullptr);
  // Like the above, for a frame that has memory and a header with type and shape. `values` receives what the
  // frame decodes to if the encoder computes it anyway; it may be null, or `data`.
  Error encode(const uint8_t* data, double carried, Values values, Frame* frame, const Reference& base);
  Error decode(const Frame& frame, Span into, Base* base = nullptr);
  // Adds to `error`, the largest error of the values in `into`.
  Error decode_add(const Frame& frame, Span into, double* error);
  // Decodes or adds a frame that fits.
  Error decode(const Frame& frame, Span into, bool adding, const Reference& base);
  Error add(const Frame& frame, const Frame& other, Span like, Frame* sum);
  // Overwrites a block, widening or rounding if the types differ; returns the rounding error.
  double copy(Span block, Span into);
  // Reads the header of a message of `nbytes` bytes; the frame is poisoned if there are none.
  Error received(const uint8_t* header, uint64_t nbytes, Frame* frame);
  // True if a frame can be decoded into this block, or added to it.
  bool fits(const Frame& frame, Span into, bool adds, Error* error);

  // overflows: true if an error of `bound` in values of at most this magnitude may turn a finite sum
  // infinite.
  // may_overflow: true if this depends on the magnitude.
  bool overflows(double bound, double largest) const;
  bool may_overflow(double bound) const;
  double modulus(double bound) const { return modulus_bound(coding_.parts, bound); }
  const Coding& coding() const { return coding_; }
  const Level& level() const { return level_; }
  bool sums() const { return terms_ > 0; }
  // A codec's index in the table.
  int32_t index_of(uint64_t name) const;
  // The codec that `lossless` chose, from the parameters in a header.
  Attempt chosen(const uint64_t* params) const;

 private:
  int64_t attempt(const Attempt& attempt, const uint8_t* data, Values values, Frame* frame,
                  const Reference& base);
  Allocator& allocator_of(const Frame& frame) { return frame.allocator ? *frame.allocator : pool_; }
  Error verify(const Frame& frame, const uint8_t** payload);
  const Codec* find(uint64_t name) const;

  const Coding& coding_;
  const Level& level_;
  Pool& pool_;
  const int32_t terms_;
};

}  // namespace engine
}  // namespace compcoll
