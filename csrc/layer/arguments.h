// The arguments of a call, and the blocks of memory that they describe.
#pragma once
#include <vector>

#include "calls.h"

namespace compcoll {
namespace layer {

// The buffers of a call, of which a rank uses those that it exchanges blocks of.
struct Arguments {
  explicit Arguments(const Call& call);

  Side sides[2];
  bool sound = true;  // whether all that is used has a datatype; else MPI has something to say

  // What tells this call from others on this rank.
  std::vector<int64_t> key() const;
  // The datatype by which all ranks know the elements of a call that they decide together.
  const Type& decisive() const;
  // The block for a rank, or the one that there is.
  Block block(SideName side, int i) const;
  // The blocks that are sent and received, as algorithms want them: compcoll/algorithms/catalog.py.
  void blocks(std::vector<Block>* send, std::vector<Block>* recv) const;
  // Whether a buffer of this rank is both sent and received into, which MPI forbids where it is not
  // MPI_IN_PLACE; and whether the block that it sends to itself has another size there than where it is
  // received.
  bool is_aliased() const;
  bool differs() const;

 private:
  int64_t count(SideName side, int i) const;
  const Type* type(SideName side, int i) const;
  bool own(Block* sent, Block* received) const;
  const Call& call_;
  bool sends_received_ = false;  // whether what is sent lies in the receive buffer
};

// Where a block's bytes lie.
Room room_of(const Block& block);

}  // namespace layer
}  // namespace compcoll
