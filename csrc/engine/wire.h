// Messages of a schedule in flight, through MPI, shared memory, or a test's stand-in.
#pragma once
#include <cstdint>
#include <vector>

#include "pool.h"

namespace compcoll {
namespace engine {

// A completed message.
struct Done {
  static constexpr int32_t NO_MEMORY = -1;  // no memory to receive it into

  int32_t op;
  int32_t error;    // MPI's error code, or the above; 0 if none
  int64_t nbytes;   // received bytes
  const uint8_t* frame = nullptr;  // address of the frame if it lies in another process's memory
};

class Wire {
 public:
  virtual ~Wire() = default;
  // Start to send or receive bytes for an operation; return MPI's error code, 0 if none.
  virtual int send(int32_t op, const uint8_t* data, uint64_t nbytes, int peer, int tag) = 0;
  virtual int recv(int32_t op, uint8_t* data, uint64_t room, int peer, int tag) = 0;
  // Appends completed messages; returns an error code if it cannot test them.
  virtual int poll(std::vector<Done>* done) = 0;
  virtual uint64_t under_way() const = 0;
  // Lets MPI progress even if this wire has no messages in flight: others may wait for operations that this
  // rank began earlier.
  virtual void progress() {}
  // True if messages to and from this rank stay in place, in shared memory. Received frames then come with
  // their own memory and have to be released; sent frames should come from `allocator`. GPUs copy a frame in
  // place if `pin` can register it.
  virtual bool lends(int) const { return false; }
  virtual Allocator* allocator() const { return nullptr; }
  virtual void release(const uint8_t*) {}
  virtual void pin(const uint8_t*) {}
  // refuse: tells a rank, with a dedicated tag, that this one has given up the messages between them.
  // is_refused: true if any rank has told this one; later wires of the communicator know it, too.
  virtual void refuse(int, int) {}
  virtual bool is_refused(int) { return false; }
};

}  // namespace engine
}  // namespace compcoll
