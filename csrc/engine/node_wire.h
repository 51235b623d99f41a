// A wire whose messages to ranks of the same node are notices of frames in shared memory.
#pragma once
#include <memory>
#include <vector>

#include "shared_memory.h"
#include "wire.h"

namespace compcoll {
namespace engine {

// The ranks of a communicator that are on this one's node.
struct Neighbours {
  std::shared_ptr<SharedMemory> memory;
  uint64_t key = 0;  // of the communicator: no other that two of its processes are in has the same
  int rank = 0;
  std::vector<uint64_t> tokens;  // of each rank's segment; 0 of those that are not, and of this one
};

std::unique_ptr<Wire> make_node_wire(std::unique_ptr<Wire> wire,
                                     std::shared_ptr<const Neighbours> neighbours);

}  // namespace engine
}  // namespace compcoll
