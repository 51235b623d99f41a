// A receive of MPI's into scratch memory, from where its message is delivered without Python where possible.
#pragma once
#include <atomic>
#include <memory>

#include "coding.h"
#include "mpi.h"
#include "task.h"

namespace compcoll {
namespace engine {

// Where a message arrives and where its values belong.
struct RecvBuffers {
  const uint8_t* scratch;
  const void* status;  // MPI's
  uint8_t* data;
  uint64_t room;  // bytes there
};

// Copies a plain message, and decodes a compressed one of a single chunk (compcoll/mpi/p2p/protocol.py).
// Others, and damaged ones, stay in the scratch memory.
class ScratchRecv : public Task {
 public:
  // First messages hold at most so many bytes of values.
  static constexpr uint64_t largest_chunk = 1 << 20;

  ScratchRecv(const Library& library, std::unique_ptr<Task> request, const RecvBuffers& buffers,
              const Coding& coding, Pool& pool)
      : mpi_(library),
        request_(std::move(request)),
        buffers_(buffers),
        coding_(coding),
        coder_(coding_, pool) {}

  bool step() override;
  bool done() override { return request_->done(); }
  bool is_long() const override { return request_->is_long(); }
  // Have the message stay in the scratch memory.
  void keep() { kept_ = true; }

  const Task& request() const { return *request_; }
  // Of one that is done.
  bool delivered() const { return delivered_; }
  bool compressed() const { return compressed_; }
  double seconds() const { return seconds_; }

 private:
  void deliver();
  bool decode(uint64_t nbytes);

  const Library& mpi_;
  const std::unique_ptr<Task> request_;
  const RecvBuffers buffers_;
  const Coding coding_;
  Coder coder_;
  std::atomic<bool> kept_{false}, delivered_{false};
  bool compressed_ = false;
  double seconds_ = 0;
};

}  // namespace engine
}  // namespace compcoll
