// Handles of marked communicators: an open hash table, which is read without a lock.
#pragma once
#include <atomic>
#include <vector>

#include "mpi.h"

namespace compcoll {
namespace layer {

class Comm;

struct CommTable {
  struct Slot {
    std::atomic<Word> handle{0};
    std::atomic<Comm*> comm{nullptr};
  };
  explicit CommTable(size_t size) : slots(size), mask(size - 1) {}
  COMPCOLL_INLINE size_t place_of(Word handle) const {
    for (size_t i = (handle ^ handle >> 16) * 0x9e3779b97f4a7c15 >> 32;; i++) {
      const Word there = slots[i & mask].handle.load(std::memory_order_acquire);
      if (there == handle || !there) return i & mask;
    }
  }
  COMPCOLL_INLINE Comm* look_up(Word handle) const {
    return slots[place_of(handle)].comm.load(std::memory_order_acquire);
  }
  void put(Word handle, Comm* comm);
  void remove(Word handle);

  std::vector<Slot> slots;
  const size_t mask;
  size_t used = 0;
};

extern COMPCOLL_INTERNAL std::atomic<CommTable*> comm_table;

// Puts a communicator into the table, or a larger one that takes its place. One thread at a time does that.
void put_into_table(Word handle, Comm* comm);

}  // namespace layer
}  // namespace compcoll
