// A compressed message on the wire: the first message of it in ordinary clothes, chunks on the private
// communicator, and a notice for probes.
//
// The first message travels on the program's communicator under its tag, so that MPI finds the receive for
// it: an `Opening`, the first chunk's frame, and padding, which gives it a length that few others have. All
// of it is in there where one chunk is enough. It is never longer than the values for which it stands: else
// these go as they are. A receive looks at the beginning of any message of such a length, and a probe for its
// notice, which is sent before it.
#pragma once
#include <cstdint>

#include "engine/coding.h"

namespace compcoll {
namespace layer {

// What a first message begins with.
struct Opening {
  uint64_t n;  // elements of the whole message
  uint32_t step;  // of a chunk; 0 where the first one is all there is
  uint32_t itemsize;
  uint32_t stream;  // the tag of the second chunk; each further one has the next
  uint32_t serial;  // by which its notice is known
  uint32_t frame_nbytes;  // 0 where the sender could not encode its values
  uint32_t checksum;  // of what is before it
};

// First messages have at least so many bytes; and what is left of these when divided by a unit.
constexpr uint64_t least_first = 1024, unit_of_first = 128, rest_of_first = 77;
// First chunks have so many bytes at most, so that they fit a receive's scratch memory; and so many where
// others follow: MPI sends such a message at once, and both sides know of each other's chunks before either
// waits for one.
constexpr uint64_t largest_first_chunk = 1 << 20, opening_chunk = 8 << 10;
// A first message may be larger than its chunk by this much.
constexpr uint64_t first_room = sizeof(Opening) + engine::HEADER_NBYTES + least_first + unit_of_first;

inline bool looks_compressed(int64_t nbytes) {
  return nbytes >= int64_t(least_first) && nbytes % int64_t(unit_of_first) == int64_t(rest_of_first);
}

// A first message. Its frame is encoded where it belongs: the message is the frame's allocator.
class FirstMessage : public engine::Allocator {
 public:
  ~FirstMessage() override { clear(); }
  uint8_t* get(uint64_t nbytes) override;
  void put(uint8_t*, uint64_t) override {}  // it goes with the message
  // Puts the opening before the frame, and padding behind it.
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

// What a first message begins with; false if these bytes are none.
bool unpack_first(const uint8_t* data, uint64_t nbytes, Opening* opening);

}  // namespace layer
}  // namespace compcoll
