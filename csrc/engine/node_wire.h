// A wire that sends messages within a node as notices of frames in shared memory.
#pragma once
#include <memory>
#include <vector>

#include "shared_memory.h"
#include "wire.h"

namespace compcoll {
namespace engine {

// The ranks of a communicator on this rank's node.
struct Neighbours {
  std::shared_ptr<SharedMemory> memory;
  uint64_t key = 0;  // of the communicator; no other communicator with two of its processes has the same
  int rank = 0;
  std::vector<uint64_t> tokens;  // of each rank's segment; 0 for this rank and ranks of other nodes
};

std::unique_ptr<Wire> make_node_wire(std::unique_ptr<Wire> wire,
                                     std::shared_ptr<const Neighbours> neighbours);

}  // namespace engine
}  // namespace compcoll
