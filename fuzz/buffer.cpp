#include "buffer.h"

#include <sanitizer/asan_interface.h>
#include <sys/mman.h>

#include <cstring>

#include "harness.h"

namespace fuzz {

// Between two buffers: out of reach for what goes wrong by a few vectors.
static constexpr uint64_t gap = 4096;
// More than all buffers of an input have together.
static constexpr uint64_t arena_nbytes = uint64_t(32) << 20;
// Huge buffers up to the former can be written, larger ones never are: no payload that fits into an input
// decodes to so much.
static constexpr uint64_t mapped_nbytes = uint64_t(1) << 32, page = 4096;
static constexpr int max_huge = 4;
static constexpr uint8_t canary = 0xc5;

static uint8_t* map(uint64_t nbytes, int access) {
  void* pages = mmap(nullptr, nbytes, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  require(pages != MAP_FAILED, "there is address space for the buffers");
  return static_cast<uint8_t*>(pages);
}

static uint8_t* arena() {
  static uint8_t* const begin = [] {
    uint8_t* all = map(arena_nbytes, PROT_READ | PROT_WRITE);
    __asan_poison_memory_region(all, arena_nbytes);
    return all;
  }();
  return begin;
}

// The end of address space with a page behind it that cannot be touched.
static uint8_t* huge_end(int i) {
  static uint8_t* ends[max_huge];
  if (!ends[i]) {
    ends[i] = map(mapped_nbytes + page, PROT_READ | PROT_WRITE) + mapped_nbytes;
    require(!mprotect(ends[i], page, PROT_NONE), "a page can be closed");
  }
  return ends[i];
}

static uint64_t top = 0;  // bytes of the arena in use
static int huge_count = 0;

static uint64_t room(uint64_t nbytes) { return (16 + nbytes + gap) / 16 * 16; }

Buffer::Buffer(uint64_t nbytes, bool odd) : nbytes_(nbytes) {
  static uint8_t content = 0;
  if (huge()) {
    require(huge_count < max_huge, "there is address space for one more huge buffer");
    static uint8_t* const untouchable = map(page, PROT_NONE);
    data_ = nbytes > mapped_nbytes ? untouchable : huge_end(huge_count) - nbytes;
    huge_count++;
    return;
  }
  uint8_t* begin = arena() + top;
  top += room(nbytes);
  require(top <= arena_nbytes, "the arena has room for all buffers of an input");
  __asan_unpoison_memory_region(begin, nbytes + odd);
  if (odd) {
    before_ = begin;
    *before_ = canary;
  }
  data_ = begin + odd;
  clear(++content * 37);
}

Buffer::~Buffer() {
  if (huge()) {
    huge_count--;
    if (nbytes_ <= mapped_nbytes) madvise(huge_end(huge_count) - (nbytes_ + page - 1) / page * page,
                                          (nbytes_ + page - 1) / page * page, MADV_DONTNEED);
    return;
  }
  require(!before_ || *before_ == canary, "nothing is written before a buffer");
  __asan_poison_memory_region(arena() + top - room(nbytes_), room(nbytes_));
  top -= room(nbytes_);
}

void Buffer::copy_from(const void* src) const {
  if (nbytes_) memcpy(data_, src, nbytes_);
}

void Buffer::clear(uint8_t value) const {
  if (!huge()) memset(data_, value, nbytes_);
}

}  // namespace fuzz
