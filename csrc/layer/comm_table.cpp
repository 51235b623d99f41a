#include "comm_table.h"

namespace compcoll {
namespace layer {

std::atomic<CommTable*> comm_table{new CommTable(256)};

void CommTable::put(Word handle, Comm* comm) {
  Slot& slot = slots[place_of(handle)];
  used += !slot.handle.load();
  slot.comm.store(comm, std::memory_order_release);
  slot.handle.store(handle, std::memory_order_release);
}

// A removed slot keeps its handle while searches may pass it, that is, until the next slot is empty.
void CommTable::remove(Word handle) {
  size_t i = place_of(handle);
  auto at = [this](size_t place) -> Slot& { return slots[place & mask]; };
  at(i).comm.store(nullptr);
  while (!at(i + 1).handle.load() && at(i).handle.load() && !at(i).comm.load()) {
    at(i).handle.store(0);
    used--;
    i = (i - 1) & mask;
  }
}

void put_into_table(Word handle, Comm* comm) {
  CommTable* now = comm_table.load();
  if (2 * (now->used + 1) > now->slots.size()) {
    auto larger = new CommTable(2 * now->slots.size());  // the old one is kept: others may read it
    for (CommTable::Slot& slot : now->slots)
      if (Comm* there = slot.comm) larger->put(slot.handle, there);
    comm_table.store(larger);
    now = larger;
  }
  now->put(handle, comm);
}

}  // namespace layer
}  // namespace compcoll
