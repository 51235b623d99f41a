// GPU memory, which MPI would access like host memory. Parts of a call that the engine does not carry
// go through host copies.
#pragma once
#include <memory>
#include <vector>

#include "arguments.h"

namespace compcoll {
namespace layer {

using MarksRef = std::shared_ptr<engine::Marks>;

// Finds the buffers of a call that are on GPUs, as far as this rank uses them, and records events after the
// caller's work there. MPI's code if the call is refused before it begins.
int find_devices(CollectiveCall& call);

// Records events after the work that the caller has started on GPUs; MPI's code if a stream is being captured
// or a GPU has failed.
int record_stream_events(const std::vector<int>& gpus, MarksRef* marks, bool* refused);

// Copies between GPU memory and pinned host memory, or between GPUs, after the events of `marks`.
class Copies : public engine::Task {
 public:
  struct CopyRange {
    Word on_device;
    uint8_t* on_host;
    uint64_t nbytes;
    int gpu;
    uint64_t rows = 1;  // number of rows of `nbytes`, and their distance, in copies to a GPU
    int64_t stride = 0;
    Word source = 0;  // address on a GPU in place of host memory
  };
  explicit Copies(bool to_host) : to_host_(to_host) {}
  Copies(const Copies&) = delete;
  std::vector<CopyRange> ranges;
  // Adds the bytes `first` to `end` of a packed block at this offset from both addresses.
  void add(const engine::Layout& layout, int64_t offset, uint64_t first, uint64_t end, Word on_device,
           uint8_t* on_host, int gpu);

  // Begins at once, or after other tasks.
  void begin(MarksRef marks, std::vector<std::shared_ptr<engine::Task>> before = {});
  bool step() override;
  bool done() override { return done_; }
  bool is_on_device() const override { return begun_ && !done_; }
  void rest(double seconds) override;
  // Waits for the end; MPI's code. `alone`: makes no progress for other tasks.
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

// Host copies of a call's GPU memory. A rank's own block is copied on the GPU if possible.
class HostCopies {
 public:
  // `sent` and `received`: true for ranks whose messages the engine carries; empty if MPI carries all. `all`:
  // the rank's own block is copied to the host, too.
  HostCopies(const CollectiveCall& call, const std::vector<uint8_t>& sent,
             const std::vector<uint8_t>& received, bool all = false);
  // Copies nothing, and only waits for the work that the caller has started on its GPUs.
  explicit HostCopies(const CollectiveCall& call) : words_(call, call.words, {}, {}) {
    for (int gpu : call.gpus)
      if (gpu != engine::NO_GPU) to_host_copies_.ranges.push_back({0, nullptr, 0, gpu});
  }
  ~HostCopies();
  HostCopies(const HostCopies&) = delete;
  const Word* words() const { return words_.words(); }
  // Copies sent data to the host after the events of `marks`, and begins copies between GPUs. After an error
  // MPI still carries out the call, since the other ranks wait for it.
  void copy_to_host(MarksRef marks);
  // Copies received data to the GPU, at once or after other tasks.
  void copy_to_device();
  void add_tasks(std::shared_ptr<HostCopies> self, std::vector<std::shared_ptr<engine::Task>>* tasks);
  std::vector<int> gpus() const { return {gpus_, gpus_ + 2}; }
  // Frees the host memory.
  void release();
  // MPI's code of the first error.
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
