// A block side by side: as it lies in memory, or a copy where its layout has gaps.
#pragma once
#include "coding.h"
#include "layout.h"
#include "pool.h"

namespace compcoll {
namespace engine {

class Dense {
 public:
  // `reads`: whether its values are wanted.
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
  // Puts values that were written to the copy to where they belong.
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
