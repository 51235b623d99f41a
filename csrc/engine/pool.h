// Reusable scratch memory: fresh pages cost more than the codec that writes to them.
#pragma once
#include <cstdint>
#include <mutex>
#include <vector>

namespace compcoll {
namespace engine {

class Allocator {
 public:
  virtual ~Allocator() = default;
  // At least `nbytes` bytes, aligned to 64; throws std::bad_alloc.
  virtual uint8_t* get(uint64_t nbytes) = 0;
  // Memory that GPUs copy to and from; null if there is none left.
  virtual uint8_t* get_pinned(uint64_t) { return nullptr; }
  virtual void put(uint8_t* memory, uint64_t nbytes) = 0;  // `nbytes` as requested
};

// Buffers by size class (powers of two and the halves between). Keeps at most `keep_nbytes` bytes idle; above
// that, releases the largest buffers first.
class Pool : public Allocator {
 public:
  // A source of memory for pools. Returns null when exhausted, and so does the pool. Memory that is idle when
  // the pool ends is not released: it ends with its source.
  struct Source {
    virtual ~Source() = default;
    virtual uint8_t* allocate(uint64_t nbytes) = 0;
    virtual void release(uint8_t* memory, uint64_t nbytes) = 0;
  };

  // Without a source, memory comes from operator new.
  explicit Pool(uint64_t keep_nbytes, Source* source = nullptr)
      : keep_nbytes_(keep_nbytes), source_(source) {}
  ~Pool() override;
  Pool(const Pool&) = delete;

  uint8_t* get(uint64_t nbytes) override;
  void put(uint8_t* memory, uint64_t nbytes) override;
  uint64_t idle_nbytes();
  // Releases all idle buffers.
  void trim();

 private:
  static constexpr int n_classes = 128;
  static int class_of(uint64_t nbytes);
  static uint64_t size_of(int index);

  void release(uint8_t* memory, int index);
  void release_down_to(uint64_t nbytes);

  const uint64_t keep_nbytes_;
  Source* const source_;
  std::mutex mutex_;
  uint64_t idle_nbytes_ = 0;
  std::vector<uint8_t*> idle_[n_classes];
};

}  // namespace engine
}  // namespace compcoll
