// Several tasks as one.
#pragma once
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "task.h"

namespace compcoll {
namespace engine {

class TaskGroup : public Task {
 public:
  using Parts = std::vector<std::shared_ptr<Task>>;

  explicit TaskGroup(Parts parts) : parts_(std::move(parts)) {}

  bool step() override {
    bool moved = false;
    for (const auto& part : parts_) moved |= !part->done() && part->step();
    return moved;
  }
  bool done() override {
    return std::all_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->done(); });
  }
  // Broken only after all other parts have ended: until then MPI may be writing to the caller's memory.
  bool broken() const override {
    const auto ended = [](const auto& part) { return part->broken() || part->done(); };
    return std::all_of(parts_.begin(), parts_.end(), ended) &&
           std::any_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->broken(); });
  }
  bool is_long() const override {
    return std::any_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->is_long(); });
  }
  bool is_on_device() const override {
    return std::any_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->is_on_device(); });
  }
  void waited(double seconds) override {
    if (!parts_.empty()) parts_[0]->waited(seconds);
  }
  const Parts& parts() const { return parts_; }

 private:
  const Parts parts_;
};

}  // namespace engine
}  // namespace compcoll
