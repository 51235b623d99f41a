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
int record_stream_events(const std::vector<int>& gpus, MarksRef* marks, bool* refused);

// Copies between memory of GPUs and pinned memory of the host, or on GPUs, behind marks.
class Copies : public engine::Task {
 public:
  struct CopyRange {
    Word on_device;
    uint8_t* on_host;
    uint64_t nbytes;
    int gpu;
    uint64_t rows = 1;  // of so many bytes, to a GPU, and how far apart
    int64_t stride = 0;
    Word source = 0;  // on a GPU, in place of memory of the host
  };
  explicit Copies(bool to_host) : to_host_(to_host) {}
  Copies(const Copies&) = delete;
  std::vector<CopyRange> ranges;
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
  struct CopyStream {
    engine::Gpu* gpu;
    void *stream, *event;
  };
  void start();
  void look();

  const bool to_host_;
  MarksRef marks_;
  std::vector<std::shared_ptr<engine::Task>> before_;
  std::vector<CopyStream> streams_;
  std::atomic<bool> begun_{false}, done_{true};
  int code_ = 0;
};

// Copies on the host of what a call has on GPUs. What a rank sends to itself is copied there, where it can be.
class HostCopies {
 public:
  // `sent` and `received` say of a call that pairs decide with which ranks MPI has no messages; none where they
  // are empty. `all`: the rank's own block is copied to the host too.
  HostCopies(const CollectiveCall& call, const std::vector<uint8_t>& sent,
             const std::vector<uint8_t>& received, bool all = false);
  // Nothing is copied, but what the caller has started on its GPUs is waited for.
  explicit HostCopies(const CollectiveCall& call) : words_(call, call.words, {}, {}) {
    for (int gpu : call.gpus)
      if (gpu != engine::NO_GPU) to_host_copies_.ranges.push_back({0, nullptr, 0, gpu});
  }
  ~HostCopies();
  HostCopies(const HostCopies&) = delete;
  const Word* words() const { return words_.words(); }
  // Takes what is sent, behind marks, and begins what stays on GPUs. After an error MPI is to carry the call
  // out all the same, as the other ranks wait for that.
  void copy_to_host(MarksRef marks);
  // Gives back what was received, at once, or behind other tasks.
  void copy_to_device();
  void add_tasks(std::shared_ptr<HostCopies> self, std::vector<std::shared_ptr<engine::Task>>* tasks);
  std::vector<int> gpus() const { return {gpus_, gpus_ + 2}; }
  // The copies are used no more.
  void release();
  // The first error.
  int code() const { return code_ ? code_ : own_.code() ? own_.code() : to_device_copies_.code(); }

 private:
  struct Side;
  void keep_own(const CollectiveCall& call, const std::vector<Block>& blocks_received);
  void replace_buffer(const CollectiveCall& call, SideName name, Side* side);

  RemainingCall words_;
  int gpus_[2] = {engine::NO_GPU, engine::NO_GPU};
  uint8_t* memory_[2] = {};
  Copies to_host_copies_{true}, own_{false}, to_device_copies_{false};
  MarksRef marks_;
  int code_ = 0;
};

}  // namespace layer
}  // namespace compcoll
