// A receive of MPI's into scratch memory, whose message goes on to where it belongs without Python where it can.
#pragma once
#include <atomic>
#include <memory>

#include "coding.h"
#include "mpi.h"
#include "task.h"

namespace compcoll {
namespace engine {

// Where a message lands and where its values belong.
struct Grounds {
  const uint8_t* scratch;
  const void* status;  // MPI's
  uint8_t* data;
  uint64_t room;  // bytes there
};

// Values that came as they are are copied, and those of an envelope that is all of its message are decoded:
// compcoll/mpi/envelopes.py has its form. What is larger, damaged or of several chunks stays where it landed.
class Landing : public Task {
 public:
  // Envelopes hold at most so many bytes of values.
  static constexpr uint64_t largest_chunk = 1 << 20;

  Landing(const Library& library, std::unique_ptr<Task> request, const Grounds& grounds, const Coding& coding,
          Pool& pool)
      : mpi_(library),
        request_(std::move(request)),
        grounds_(grounds),
        coding_(coding),
        coder_(coding_, pool) {}

  bool step() override;
  bool done() override { return request_->done(); }
  bool is_long() const override { return request_->is_long(); }
  // Whatever comes stays where it lands.
  void leave() { left_ = true; }

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
  const Grounds grounds_;
  const Coding coding_;
  Coder coder_;
  std::atomic<bool> left_{false}, delivered_{false};
  bool compressed_ = false;
  double seconds_ = 0;
};

}  // namespace engine
}  // namespace compcoll
