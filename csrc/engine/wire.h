// The messages of a schedule under way: MPI's, or a stand-in's.
#pragma once
#include <cstdint>
#include <vector>

namespace compcoll {
namespace engine {

// A message that is through.
struct Done {
  int32_t op;
  int32_t error;    // MPI's code, 0 if there is none
  int64_t nbytes;   // of what was received
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
};

}  // namespace engine
}  // namespace compcoll
