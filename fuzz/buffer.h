// Memory for what the codecs read and write, of the exact size that they are promised: AddressSanitizer sees
// every byte touched outside of it. From one piece of memory that is always the same, because malloc and free
// take longer than a decoder of a few bytes.
#pragma once
#include <cstdint>

namespace fuzz {

// Up to here a buffer has all its bytes. Larger ones are address space, whose pages nobody looks at.
constexpr uint64_t heap_nbytes = uint64_t(1) << 20;

// Goes away in the reverse order of coming. The content is arbitrary: two buffers differ wherever they were
// not written.
class Buffer {
 public:
  explicit Buffer(uint64_t nbytes, bool odd = false);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  uint8_t* data() const { return data_; }
  uint64_t nbytes() const { return nbytes_; }
  bool huge() const { return nbytes_ > heap_nbytes; }
  void copy_from(const void* src) const;
  void clear(uint8_t value) const;

 private:
  uint8_t* data_;
  uint64_t nbytes_;
  uint8_t* before_ = nullptr;  // of odd ones the byte before the first, which shares its word of shadow
};

}  // namespace fuzz
