// A block in contiguous memory: the block itself, or a copy if its layout has gaps.
#pragma once
#include "coding.h"
#include "layout.h"
#include "pool.h"

namespace compcoll {
namespace engine {

class Dense {
 public:
  // `reads`: the block's values are needed.
  Dense(Pool& pool, const Span& block, bool reads) : pool_(pool), block_(block), span_(block) {
    span_.layout = nullptr;
    if (!block.layout || !block.data) return;
    span_.data = in_one_piece(*block.layout, block.data, block.first, block.first + block.nbytes());
    if (span_.data) return;
    span_.data = copy_ = pool.get(block.nbytes());
    span_.past_cache = false;
    if (reads) gather(*block.layout, block.data, block.first, block.first + block.nbytes(), copy_);
  }
  ~Dense() {
    if (copy_) pool_.put(copy_, block_.nbytes());
  }
  Dense(const Dense&) = delete;

  const Span& span() const { return span_; }
  // Copies values written to the copy back to the block.
  void store() const {
    if (copy_) scatter(*block_.layout, block_.data, block_.first, block_.first + block_.nbytes(), copy_);
  }

 private:
  Pool& pool_;
  const Span block_;
  Span span_;
  uint8_t* copy_ = nullptr;
};

}  // namespace engine
}  // namespace compcoll
