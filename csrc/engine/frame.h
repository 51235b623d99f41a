// The header of a frame; compcoll/frame.py gives its layout.
#pragma once
#include "../abi.h"
#include "../cpu/table.h"

namespace compcoll {
namespace engine {

constexpr uint64_t HEADER_NBYTES = 80;
// Room behind the raw size in an encoder's output, for streams that end past it and are then dropped.
constexpr uint64_t SLACK = 64;
// A byte behind a frame on the wire says that the sender has more messages for the receiver in the same call.
// Its value means nothing.
constexpr uint64_t MORE_NBYTES = 1;

struct Header {
  uint64_t codec;  // its name's eight bytes
  uint32_t dtype, ndim;
  uint64_t shape[3], params[2];
  uint64_t payload_nbytes;
  double bound;
  uint32_t checksum;
  bool has_checksum, fallback;

  uint64_t size() const { return shape[0] * shape[1] * shape[2]; }
  uint64_t nbytes() const { return size() * itemsize(dtype); }
};

// Whether two frames differ in their values alone, so that they may be added.
bool alike(const Header& a, const Header& b);

// A codec's name as it stands in the header.
uint64_t packed_name(const char* name);

// Writes the header in front of the payload that is there already, whose checksum it forms if `has_checksum`.
void pack(const Level& level, Header* header, uint8_t* frame);

// Writes it as far as it is known before the payload is: without size and checksums.
void outline(const Header& header, uint8_t* frame);

// Faults of a header in the order in which they are looked for; compcoll/core/frames.pxi has their texts.
enum class Damage : int64_t {
  NONE,
  SHORT,
  MAGIC,
  OWN_CHECKSUM,
  VERSION,
  TYPE,
  DIMENSIONS,
  SIZE,
  PAYLOAD,
  TRUNCATED,
  BOUND,
};

// Reads a header, damaged fields too unless it is SHORT. The payload is not looked at.
Damage unpack(const Level& level, const uint8_t* frame, uint64_t available, Header* header);

}  // namespace engine
}  // namespace compcoll
