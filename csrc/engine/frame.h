// The header of a frame; compcoll/frame.py gives its layout.
#pragma once
#include "../abi.h"
#include "../cpu/table.h"

namespace compcoll {
namespace engine {

constexpr uint64_t HEADER_NBYTES = 80;
// Room after the raw size in an encoder's output, for streams that overrun it and are then discarded.
constexpr uint64_t SLACK = 64;
// On the wire, one byte of any value after a frame says that the sender has more messages for the receiver in
// the same call.
constexpr uint64_t MORE_NBYTES = 1;

struct Header {
  uint64_t codec;  // the eight bytes of its name
  uint32_t dtype, ndim;
  uint64_t shape[3], params[2];
  uint64_t payload_nbytes;
  double bound;
  uint32_t checksum;
  bool has_checksum, fallback;

  uint64_t size() const { return shape[0] * shape[1] * shape[2]; }
  uint64_t nbytes() const { return size() * itemsize(dtype); }
};

// True if two frames differ only in their values, so that they can be added.
bool alike(const Header& a, const Header& b);

// A codec's name as it is stored in the header.
uint64_t packed_name(const char* name);

// Writes the header in front of the payload, and computes the payload's checksum if `has_checksum`.
void pack(const Level& level, Header* header, uint8_t* frame);

// Writes the fields that are known before the payload: all but size and checksums.
void outline(const Header& header, uint8_t* frame);

// Faults of a header in the order of the checks; compcoll/core/frames.pxi has their texts.
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

// Reads a header, even a damaged one unless it is SHORT, but not the payload.
Damage unpack(const Level& level, const uint8_t* frame, uint64_t available, Header* header);

}  // namespace engine
}  // namespace compcoll
