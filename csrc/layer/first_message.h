// A compressed message on the wire: its first message on the program's communicator, chunks on the private
// communicator, and a notice for probes.
//
// The first message has the program's tag, so that MPI matches it with the receive. It consists of an
// `Opening`, the first chunk's frame, and padding to a length that few other messages have. If one chunk is
// enough, there are no others. A first message is never longer than the message's values; else MPI sends the
// values as they are. A receive examines each message of such a length. A probe looks for its notice, which
// is sent before it.
#pragma once
#include <cstdint>

#include "engine/coding.h"

namespace compcoll {
namespace layer {

// The header of a first message.
struct Opening {
  uint64_t n;  // elements of the whole message
  uint32_t step;  // elements of a chunk; 0 if there is only the first one
  uint32_t itemsize;
  uint32_t stream;  // tag of the second chunk; later ones have the following tags
  uint32_t serial;  // identifies the notice
  uint32_t frame_nbytes;  // 0 if the sender could not encode its values
  uint32_t checksum;  // of the fields above
};

// The least bytes of a first message, and the remainder of its length modulo the unit.
constexpr uint64_t least_first = 1024, unit_of_first = 128, rest_of_first = 77;
// The most bytes of a first chunk, so that it fits a receive's scratch buffer, and of a first chunk that
// others follow: MPI sends such a small message at once, so that both sides know of each other's chunks
// before either waits for one.
constexpr uint64_t largest_first_chunk = 1 << 20, opening_chunk = 8 << 10;
// The most bytes by which a first message exceeds its chunk.
constexpr uint64_t first_room = sizeof(Opening) + engine::HEADER_NBYTES + least_first + unit_of_first;

inline bool looks_compressed(int64_t nbytes) {
  return nbytes >= int64_t(least_first) && nbytes % int64_t(unit_of_first) == int64_t(rest_of_first);
}

// A first message. It is the allocator of its frame, so that the frame is encoded in place.
class FirstMessage : public engine::Allocator {
 public:
  ~FirstMessage() override { clear(); }
  uint8_t* get(uint64_t nbytes) override;
  void put(uint8_t*, uint64_t) override {}  // freed with the message
  // Adds the opening before the frame, and the padding after it.
  void pack(Opening opening);
  void clear();
  bool empty() const { return !size_; }
  uint64_t size() const { return size_; }
  const uint8_t* data() const { return memory_ + lead - sizeof(Opening); }

 private:
  static constexpr uint64_t lead = 64;  // keeps the frame aligned
  uint8_t* memory_ = nullptr;
  uint64_t room_ = 0, size_ = 0;
};

// Reads the opening; false if these bytes are no first message.
bool unpack_first(const uint8_t* data, uint64_t nbytes, Opening* opening);

}  // namespace layer
}  // namespace compcoll
