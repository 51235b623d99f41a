// Posted receives whose buffers overlap. The MPI standard forbids them, but programs that measure bandwidth
// post a window of receives on one buffer and never read the values.
//
// MPI receives a large message in place, in the program's buffer. If the message is compressed, its first
// message lies there until the layer looks at it, and must not be overwritten until then. So a receive that
// overlaps another one gets a scratch buffer, and the layer leaves the places of first messages out when it
// writes.
//
// MPI carries out small receives by itself. Nobody tells the layer when one of them completes, so the last of
// these receives count as incomplete.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>

#include "mpi.h"

namespace compcoll {
namespace layer {

// A range of memory.
struct Range {
  uint8_t *begin, *end;
  bool meets(const Range& other) const { return begin < other.end && other.begin < end; }
};

// The memory that one receive holds, in place or while the layer writes.
class Landing {
 public:
  Landing() = default;
  ~Landing();
  Landing(const Landing&) = delete;

  // Registers a receive in place, whose first message takes at most `first_nbytes`. False if another receive
  // overlaps the bytes.
  bool receive_in_place(const Range& bytes, uint64_t first_nbytes);
  // Ends the receive in place: no first message lies there any more. Writes the bytes that other receives
  // have withheld, except the first `nbytes`, which hold a plain message.
  void end_in_place(uint64_t nbytes);

  // Registers a write of the layer to these bytes; false if first messages of other receives may lie there.
  bool begin_write(const Range& bytes);
  void end_write();
  // Writes a message's bytes, except where first messages of other receives lie: these bytes are withheld
  // until the first message has been looked at. `visit_all` calls its argument with the place, the bytes and
  // the number of bytes of each stretch, in order.
  using Write = std::function<void(uint8_t* place, const uint8_t* from, uint64_t nbytes)>;
  void write_around(const Range& bytes, const std::function<void(const Write&)>& visit_all);

 private:
  uint8_t* in_place_ = nullptr;
  Range written_ = {};
};

// The number of receives in place; `is_guarded` is true if the first message of one may overlap these bytes.
extern std::atomic<int> n_in_place;
bool is_guarded(const Range& bytes);
// Remembers a nonblocking receive that MPI carries out, until its request's place is needed for another one.
void remember_receive_by_mpi(Word request, const Range& bytes);

}  // namespace layer
}  // namespace compcoll
