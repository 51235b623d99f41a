// Blocks to frames and back: what one operation does with the codecs of csrc/abi.h.
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

// A frame in scratch memory; one without data is poisoned: something that it depends on failed.
struct Frame {
  uint8_t* memory = nullptr;
  uint64_t room = 0;  // bytes that were asked for of the allocator; 0 of memory that is not its affair
  Allocator* allocator = nullptr;  // the pool, if none is named
  uint64_t nbytes = 0;  // of the whole frame
  Header header = {};
  bool settled = false;  // its values stand already where encoding was asked to put them
  Gpu* gpu = nullptr;  // that it lies on
  bool lent = false;  // by another process
  uint64_t came = 0;  // bytes of the message in which it came
  bool checked = true;  // whether it gets a checksum: memory that processes share is no wire

  bool poisoned() const { return !nbytes; }
  double bound() const { return nbytes ? header.bound : 0; }
};

// Kinds of errors; compcoll/core/frames.pxi and compcoll/engine/_engine.pyx make exceptions of them.
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
  MESSAGES,  // another rank has sent more or fewer of them than this one expects
  REFUSED,  // another rank has ended the call before its time
};

struct Error {
  Problem problem = Problem::NONE;
  int64_t status = 0;  // HEADER: a Damage; PAYLOAD: the codec's; MPI: the error's code
  uint64_t expected = 0;  // MISMATCH: elements, and their type
  uint32_t expected_dtype = 0;
  Header header = {};  // of the frame that was read
  uint8_t bytes[HEADER_NBYTES] = {};  // HEADER: what came in its place
  uint64_t available = 0;
  DeviceFault fault;  // DEVICE

  explicit operator bool() const { return problem != Problem::NONE; }
};

// Codecs that are not in the table. They return what the functions of csrc/abi.h do, or FAILED, when
// `context` has kept the exception.
struct Callbacks {
  static constexpr int64_t FAILED = INT64_MIN;
  void* context = nullptr;
  // Gives the header its codec, params and bound; `dst` has room for SLACK bytes more than `src` has.
  int64_t (*encode)(void* context, uint64_t attempt, Header* header, const void* src, void* dst) = nullptr;
  int64_t (*decode)(void* context, const Frame& frame, void* dst) = nullptr;
};

// The codecs to try in turn for a block.
struct Attempt {
  static constexpr int32_t CHOOSE = -1, CALLBACK = -2;
  int32_t codec;  // its place in the table, or one of the above: `lossless` chooses others by the data
  uint64_t params[3][2];  // for blocks of 1, 2 and 3 dimensions
};

// Seconds for a byte of values, by kinds of operations: the least of late, since others may have run on the
// core meanwhile.
class Pace {
 public:
  static constexpr int n_kinds = ADD + 1;
  // Seconds of operations of a kind on so many bytes together; NaN if none has been timed.
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
  const Level* const* level = nullptr;  // the one in use
  uint32_t dtype = 0;
  bool lossless = true;
  bool parts = false;  // whether real numbers are parts of complex ones, whose errors bounds are then
  bool plain = false;  // whether frames have no checksum, as messages of MPI have none
  std::vector<Attempt> attempts;
  Callbacks callbacks;
  Pace* pace = nullptr;  // of all calls with this codec, if anybody keeps it
};

// The type in which sums are formed.
constexpr uint32_t wide(uint32_t dtype) {
  return dtype == FLOAT16 || dtype == BFLOAT16 ? uint32_t(FLOAT32) : dtype;
}

// A block's memory, and its shape as in BlockRef. With a layout `data` is its origin, and `first` the packed
// bytes before the block: only csrc/engine/dense.h takes such a one.
struct Span {
  uint8_t* data;
  uint64_t n;
  uint32_t dtype;
  uint64_t plane = 0, row = 0;
  const Layout* layout = nullptr;
  uint64_t first = 0;
  bool past_cache = false;  // whether it is written once, and too large to be in the cache afterwards

  uint64_t nbytes() const { return n * itemsize(dtype); }
  uint32_t ndim() const { return !row ? 1 : plane == row ? 2 : 3; }
  // Dimension i of `ndim`, 1 of others.
  uint64_t dim(uint32_t i) const {
    if (i == 0) return row ? n / plane : n;
    return !row || i > 2 || (i == 2 && plane == row) ? 1 : i == 1 && plane != row ? plane / row : row;
  }
};

// Where a frame's values are to be put while it is encoded, if anywhere.
struct Values {
  Values(uint8_t* data = nullptr, bool past_cache = false) : data(data), past_cache(past_cache) {}
  uint8_t* data;
  bool past_cache;
};

class Coder {
 public:
  // `terms`: of the sums that frames go into; 0 where there are none.
  Coder(const Coding& coding, Pool& pool, int32_t terms = 0)
      : coding_(coding), level_(**coding.level), pool_(pool), terms_(terms) {}

  // `into` may be the block itself; its data are null where nobody asks for the frame's values. The values
  // are kept as `base`, if there is one, and are encoded by their differences to those that it had.
  Error encode(Span block, double carried, Span into, Frame* frame, Base* base = nullptr);
  // The same where the frame has memory, and its header type and shape. `values` gets what the frame decodes
  // to if that comes on the way; it may be null, or `data`.
  Error encode(const uint8_t* data, double carried, Values values, Frame* frame, const Reference& base);
  Error decode(const Frame& frame, Span into, Base* base = nullptr);
  // `error`: what the values are off by, which grows.
  Error decode_add(const Frame& frame, Span into, double* error);
  // Decodes or adds a frame that fits.
  Error decode(const Frame& frame, Span into, bool adding, const Reference& base);
  Error add(const Frame& frame, const Frame& other, Span like, Frame* sum);
  // Overwrites a block, widening or rounding where the types differ; what rounding is off by.
  double copy(Span block, Span into);
  // A frame of `nbytes` bytes that has this header; poisoned where there are none.
  Error received(const uint8_t* header, uint64_t nbytes, Frame* frame);
  // Whether a frame can be decoded into such a block, or added to it.
  bool fits(const Frame& frame, Span into, bool adds, Error* error);

  // Whether values of at most this magnitude that are off by so much may make a sum infinite that is not;
  // and whether the magnitude has to be known for that.
  bool overflows(double bound, double largest) const;
  bool may_overflow(double bound) const;
  double modulus(double bound) const { return modulus_bound(coding_.parts, bound); }
  const Coding& coding() const { return coding_; }
  const Level& level() const { return level_; }
  bool sums() const { return terms_ > 0; }
  // The place of a codec in the table.
  int32_t index_of(uint64_t name) const;
  // The codec that `lossless` has chosen, as it says in these parameters.
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
