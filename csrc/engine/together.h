// Several tasks as one.
#pragma once
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "clock.h"
#include "task.h"
#include "wire.h"

namespace compcoll {
namespace engine {

// A short message that is sent where tasks have not ended after so many seconds.
struct Question {
  std::unique_ptr<Wire> wire;  // null for none
  std::vector<uint8_t> text;
  int peer = 0, tag = 0;
  double seconds = 0;
};

class Together : public Task {
 public:
  using Parts = std::vector<std::shared_ptr<Task>>;

  explicit Together(Parts parts, Question question = {})
      : parts_(std::move(parts)), question_(std::move(question)), until_(now() + question_.seconds) {}

  bool step() override {
    bool moved = false;
    for (const auto& part : parts_) moved |= !part->done() && part->step();
    if (moved || !question_.wire) return moved;
    if (asked_) question_.wire->poll(&answered_);
    else if (now() > until_) ask();
    return false;
  }
  bool done() override {
    bool on_its_way = asked_ && question_.wire->under_way();
    return !on_its_way &&
           std::all_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->done(); });
  }
  bool broken() const override {
    return std::any_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->broken(); });
  }
  bool is_long() const override {
    return std::any_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->is_long(); });
  }
  const Parts& parts() const { return parts_; }

 private:
  void ask() {
    asked_ = true;
    question_.wire->send(0, question_.text.data(), question_.text.size(), question_.peer, question_.tag);
  }

  const Parts parts_;
  const Question question_;
  const double until_;
  std::vector<Done> answered_;
  bool asked_ = false;
};

}  // namespace engine
}  // namespace compcoll
