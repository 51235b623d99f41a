#include "first_message.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "comm.h"
#include "engine.h"
#include "message_chunks.h"

namespace compcoll {
namespace layer {
namespace {

const Level& level() { return **receiving(UINT8).coding.level; }

}  // namespace

// -- first messages

uint8_t* FirstMessage::get(uint64_t nbytes) {
  static_assert(sizeof(Opening) <= lead);
  clear();
  room_ = lead + std::max(nbytes, least_first) + unit_of_first;
  memory_ = the_engine().pool().get(room_);
  return memory_ + lead;
}

void FirstMessage::pack(Opening opening) {
  if (!memory_) get(0);  // its values could not be encoded
  opening.checksum =
      level().checksum(reinterpret_cast<const uint8_t*>(&opening), offsetof(Opening, checksum));
  const uint64_t end = sizeof opening + opening.frame_nbytes, least = std::max(end, least_first);
  size_ = least + (rest_of_first + unit_of_first - least % unit_of_first) % unit_of_first;
  uint8_t* const frame = memory_ + lead;
  memcpy(frame - sizeof opening, &opening, sizeof opening);
  memset(frame + opening.frame_nbytes, 0, size_ - end);
}

void FirstMessage::clear() {
  if (memory_) the_engine().pool().put(memory_, room_);
  memory_ = nullptr;
  size_ = 0;
}

bool unpack_first(const uint8_t* data, uint64_t nbytes, Opening* opening) {
  if (!looks_compressed(int64_t(nbytes))) return false;
  memcpy(opening, data, sizeof *opening);
  return level().checksum(data, offsetof(Opening, checksum)) == opening->checksum &&
         opening->frame_nbytes <= nbytes - sizeof *opening && opening->itemsize &&
         opening->n <= never / opening->itemsize;
}

}  // namespace layer
}  // namespace compcoll
