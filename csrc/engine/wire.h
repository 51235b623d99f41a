// The messages of a schedule under way: those of MPI, of shared memory, or of a stand-in.
#pragma once
#include <cstdint>
#include <vector>

#include "pool.h"

namespace compcoll {
namespace engine {

// A message that is through.
struct Done {
  static constexpr int32_t NO_MEMORY = -1;  // to receive it into

  int32_t op;
  int32_t error;    // MPI's code, or the above; 0 if there is none
  int64_t nbytes;   // of what was received
  const uint8_t* frame = nullptr;  // where it lies, if that is in the memory of another process
};

class Wire {
 public:
  virtual ~Wire() = default;
  // Start to send or receive bytes for an operation; MPI's error code, 0 if there is none.
  virtual int send(int32_t op, const uint8_t* data, uint64_t nbytes, int peer, int tag) = 0;
  virtual int recv(int32_t op, uint8_t* data, uint64_t room, int peer, int tag) = 0;
  // Adds what has come to its end; an error code where it cannot tell.
  virtual int poll(std::vector<Done>* done) = 0;
  virtual uint64_t under_way() const = 0;
  // Lets MPI progress while it has no message of this wire: others may wait for what this rank began before.
  virtual void progress() {}
  // Whether messages from and to a rank stay where they are, in memory that both share: its frames come
  // without memory for them, and have to be released. Those that are sent should be the allocator's. GPUs copy
  // one where it lies if `pin` can have them do so.
  virtual bool lends(int) const { return false; }
  virtual Allocator* allocator() const { return nullptr; }
  virtual void release(const uint8_t*) {}
  virtual void pin(const uint8_t*) {}
  // Tells a rank under a tag of its own that this one has given up messages between both; and whether any
  // rank has told this one, which later wires of the communicator learn, too.
  virtual void refuse(int, int) {}
  virtual bool is_refused(int) { return false; }
};

}  // namespace engine
}  // namespace compcoll
