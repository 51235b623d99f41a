#include "scratch_recv.h"

#include <cstring>

#include "clock.h"

namespace compcoll {
namespace engine {
namespace {

// The beginning of a first message.
struct Opening {
  uint64_t n;
  uint32_t step, itemsize, stream, serial, frame_nbytes, checksum;
};
static_assert(sizeof(Opening) == 32, "compcoll/mpi/p2p/protocol.py packs it");

}  // namespace

bool ScratchRecv::step() {
  if (!request_->step()) return false;
  if (!kept_ && !error_of(*request_)) deliver();
  return true;
}

void ScratchRecv::deliver() {
  int64_t nbytes = count_of(mpi_, buffers_.status);
  double start = now();
  bool plain = nbytes % 2 == 0 && nbytes >= 0 && uint64_t(nbytes) <= buffers_.room;
  if (plain) memcpy(buffers_.data, buffers_.scratch, uint64_t(nbytes));
  else if (nbytes % 2)
    compressed_ = nbytes >= int64_t(sizeof(Opening) + HEADER_NBYTES) && decode(uint64_t(nbytes));
  seconds_ = now() - start;
  delivered_ = plain || compressed_;
}

bool ScratchRecv::decode(uint64_t nbytes) {
  const Level& level = **coding_.level;
  Opening opening;
  memcpy(&opening, buffers_.scratch, sizeof opening);
  if (level.checksum(buffers_.scratch, offsetof(Opening, checksum)) != opening.checksum) return false;
  Frame frame;
  frame.memory = const_cast<uint8_t*>(buffers_.scratch) + sizeof opening;
  if (!unpack(level, frame.memory, nbytes - sizeof opening, &frame.header)) return false;
  const Header& header = frame.header;
  uint64_t each = itemsize(header.dtype);
  bool whole = header.size() == opening.n && opening.n <= opening.step && header.nbytes() <= largest_chunk;
  if (!whole || each != opening.itemsize || header.nbytes() > buffers_.room) return false;
  if (header.dtype != coding_.dtype && itemsize(coding_.dtype) > 1) return false;  // perhaps an error
  frame.nbytes = HEADER_NBYTES + header.payload_nbytes;
  return !coder_.decode(frame, {buffers_.data, opening.n, header.dtype});
}

}  // namespace engine
}  // namespace compcoll
