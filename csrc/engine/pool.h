// Scratch memory that is used again: fresh pages cost more than the codec that writes to them.
#pragma once
#include <cstdint>
#include <mutex>
#include <vector>

namespace compcoll {
namespace engine {

// Buffers by size class (powers of two and the halves between), at most `keep_nbytes` idle ones; where that
// is too many, the largest go first.
class Pool {
 public:
  explicit Pool(uint64_t keep_nbytes) : keep_nbytes_(keep_nbytes) {}
  ~Pool();
  Pool(const Pool&) = delete;

  // At least so many bytes, aligned to 64; throws std::bad_alloc.
  uint8_t* get(uint64_t nbytes);
  void put(uint8_t* memory, uint64_t nbytes);  // of as many bytes as were asked for
  uint64_t idle_nbytes();

 private:
  static constexpr int n_classes = 128;
  static int class_of(uint64_t nbytes);
  static uint64_t size_of(int index);

  const uint64_t keep_nbytes_;
  std::mutex mutex_;
  uint64_t idle_nbytes_ = 0;
  std::vector<uint8_t*> idle_[n_classes];
};

}  // namespace engine
}  // namespace compcoll
