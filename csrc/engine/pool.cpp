#include "pool.h"

#include <new>

namespace compcoll {
namespace engine {
namespace {

constexpr std::align_val_t alignment{64};
constexpr int least_bits = 12;

}  // namespace

Pool::~Pool() {
  if (!source_) trim();
}

void Pool::release(uint8_t* memory, int index) {
  if (source_) source_->release(memory, size_of(index));
  else operator delete(memory, alignment);
}

// Class 2k has 2^(least_bits + k) bytes, class 2k + 1 half as many more.
int Pool::class_of(uint64_t nbytes) {
  if (nbytes <= uint64_t(1) << least_bits) return 0;
  int bits = 64 - __builtin_clzll(nbytes - 1);  // smallest power of two that holds it
  bool half = nbytes <= uint64_t(3) << (bits - 2);
  return 2 * (bits - least_bits) - (half ? 1 : 0);
}

uint64_t Pool::size_of(int index) {
  uint64_t power = uint64_t(1) << (least_bits + index / 2);
  return index % 2 ? power + power / 2 : power;
}

uint8_t* Pool::get(uint64_t nbytes) {
  int index = class_of(nbytes);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& idle = idle_[index];
    if (!idle.empty()) {
      uint8_t* memory = idle.back();
      idle.pop_back();
      idle_nbytes_ -= size_of(index);
      return memory;
    }
  }
  if (source_) return source_->allocate(size_of(index));
  return static_cast<uint8_t*>(operator new(size_of(index), alignment));
}

void Pool::put(uint8_t* memory, uint64_t nbytes) {
  int index = class_of(nbytes);
  std::lock_guard<std::mutex> lock(mutex_);
  try {
    idle_[index].push_back(memory);
  } catch (const std::bad_alloc&) { return release(memory, index); }
  idle_nbytes_ += size_of(index);
  release_down_to(keep_nbytes_);
}

void Pool::trim() {
  std::lock_guard<std::mutex> lock(mutex_);
  release_down_to(0);
}

void Pool::release_down_to(uint64_t nbytes) {
  for (int largest = n_classes - 1; idle_nbytes_ > nbytes; largest--) {
    auto& idle = idle_[largest];
    for (; !idle.empty() && idle_nbytes_ > nbytes; idle.pop_back()) {
      release(idle.back(), largest);
      idle_nbytes_ -= size_of(largest);
    }
  }
}

uint64_t Pool::idle_nbytes() {
  std::lock_guard<std::mutex> lock(mutex_);
  return idle_nbytes_;
}

}  // namespace engine
}  // namespace compcoll
