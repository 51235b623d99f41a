// Memory of GPUs, which MPI takes for the host's: what of a call the engine does not carry out there goes
// through copies on the host.
#pragma once
#include <memory>
#include <vector>

#include "arguments.h"

namespace compcoll {
namespace layer {

using MarksRef = std::shared_ptr<engine::Marks>;

// Finds out which buffers of a call lie on GPUs, as far as this rank uses them, and marks what comes before it
// there. MPI's code of a call that is refused, before anything has begun.
int find_devices(CollectiveCall& call);

// Events behind what the caller has started on GPUs; MPI's code, of a stream that is being captured or a GPU
// that has failed.
int mark(const std::vector<int>& gpus, MarksRef* marks, bool* refused);

// Copies between memory of GPUs and pinned memory of the host, behind marks.
class Copies : public engine::Task {
 public:
  struct Range {
    Word on_device;
    uint8_t* on_host;
    uint64_t nbytes;
    int gpu;
    uint64_t rows = 1;  // of so many bytes, to a GPU, and how far apart
    int64_t stride = 0;
  };
  explicit Copies(bool to_host) : to_host_(to_host) {}
  Copies(const Copies&) = delete;
  std::vector<Range> ranges;
  // Adds bytes `first` to `end` of a packed block that lies at this offset from both addresses.
  void add(const engine::Layout& layout, int64_t offset, uint64_t first, uint64_t end, Word on_device,
           uint8_t* on_host, int gpu);

  // Begins, at once or behind other tasks.
  void begin(MarksRef marks, std::vector<std::shared_ptr<engine::Task>> before = {});
  bool step() override;
  bool done() override { return done_; }
  bool is_on_device() const override { return begun_ && !done_; }
  void rest(double seconds) override;
  // Waits for the end; MPI's code. `alone`: without a look at anything else.
  int wait(bool alone = false);
  int code() const { return code_; }

 private:
  struct Stream {
    engine::Gpu* gpu;
    void *stream, *event;
  };
  void start();
  void look();

  const bool to_host_;
  MarksRef marks_;
  std::vector<std::shared_ptr<engine::Task>> before_;
  std::vector<Stream> streams_;
  std::atomic<bool> begun_{false}, done_{true};
  int code_ = 0;
};

// Copies on the host of what a call has on GPUs.
class Staged {
 public:
  // `sent` and `received` say of a call that pairs decide with which ranks MPI has no messages; none where they
  // are empty.
  Staged(const CollectiveCall& call, const std::vector<uint8_t>& sent, const std::vector<uint8_t>& received);
  // Nothing is copied, but what the caller has started on these GPUs is waited for.
  Staged(const CollectiveCall& call, const std::vector<int>& gpus)
      : words_(call.words, call.words + call.n_words) {
    for (int gpu : gpus)
      if (gpu != engine::NO_GPU) taken_.ranges.push_back({0, nullptr, 0, gpu});
  }
  ~Staged();
  Staged(const Staged&) = delete;
  const Word* words() const { return words_.data(); }
  // Takes what is sent, behind marks. After an error MPI is to carry the call out all the same, as the other
  // ranks wait for that.
  void take(MarksRef marks);
  // Gives back what was received, at once, or behind other tasks.
  void give_back();
  std::shared_ptr<engine::Task> giving(std::vector<std::shared_ptr<engine::Task>> before,
                                       std::shared_ptr<Staged> self);
  std::vector<int> gpus() const;
  // The copies are used no more.
  void release();
  // The first error.
  int code() const { return code_ ? code_ : given_.code(); }

 private:
  std::vector<Word> words_;
  uint8_t* memory_[2] = {};
  Copies taken_{true}, given_{false};
  MarksRef marks_;
  int code_ = 0;
};

}  // namespace layer
}  // namespace compcoll
