// Values that a transfer carried last, kept on both sides as the base of its next frames (csrc/delta.h).
#pragma once
#include <cstdint>
#include <vector>

#include "../cpu/table.h"

namespace compcoll {
namespace engine {

// The values that differences are taken to, and their name: the second parameter word of such a frame.
struct Reference {
  const uint8_t* data = nullptr;
  uint64_t nbytes = 0, name = 0;
};

// The values of one block.
struct Base {
  std::vector<uint8_t> values;
  uint32_t checksum = 0, number = 0;  // transfers so far
  bool known = false, counted = true;

  Reference reference() const {
    if (!known) return {};
    return {values.data(), values.size(), uint64_t(number) << 32 | checksum};
  }
  // After an error the number is unknown, and the sender's number is adopted.
  bool is_named(uint64_t name) {
    if (!known || uint32_t(name) != checksum) return false;
    if (!counted) number = uint32_t(name >> 32), counted = true;
    return number == name >> 32;
  }
  void keep(const Level& level, const uint8_t* data, uint64_t nbytes) {
    values.assign(data, data + nbytes);
    checksum = level.checksum(data, nbytes);
    number++;
    known = true;
  }
  void drop() { known = counted = false; }
};

// Bases of a persistent call, one for each operation that encodes or decodes. Every start of the call runs
// the same operations, so each finds the values that its counterpart on another rank has kept.
class Bases {
 public:
  void prepare(size_t n_ops) { bases_.resize(n_ops); }
  Base* of(int32_t op) { return &bases_[size_t(op)]; }
  uint64_t nbytes() const {
    uint64_t sum = 0;
    for (const Base& base : bases_) sum += base.values.capacity();
    return sum;
  }

 private:
  std::vector<Base> bases_;
};

}  // namespace engine
}  // namespace compcoll
