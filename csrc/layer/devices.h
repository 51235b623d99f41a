// Memory of GPUs, which MPI takes for the host's: calls on it go through compcoll/devices, or through copies
// on the host.
#pragma once
#include <atomic>
#include <memory>
#include <vector>

#include "arguments.h"
#include "calls.h"

namespace compcoll {
namespace layer {

// Whether memory lies on a GPU; null in a process that has none.
extern COMPCOLL_INTERNAL std::atomic<bool (*)(Word)> on_device;

// From now on asks the driver, or what stands for it in tests; false where there is no driver.
bool look_for_devices(bool (*instead)(Word));

// Finds out which buffers of a call lie on a GPU, as far as this rank uses them.
void find_devices(Call* call);

// A run on such memory: Python gives the engine what it calls.
struct DeviceJob {
  uint64_t part;  // Python's number of it
  const std::vector<engine::Place>* places;
  std::vector<uint64_t> nbytes;  // of each
  engine::Device device;  // given
  KeptRef kept;  // what that refers to, given
  int code = 0;
};

// Copies between a GPU's memory and the host's, after what the caller has started on the GPU; and a wait for
// that alone.
struct DeviceCopy {
  struct Range {
    Word on_device;
    void* on_host;
    uint64_t nbytes;
  };
  std::vector<Range> ranges;
  bool to_host = true;
  int code = 0;
};

// Copies on the host of what a call has on a GPU.
class Staged {
 public:
  // `out` and `into` say of a call that pairs decide with which ranks MPI has no messages; none where they
  // are empty.
  Staged(const Call& call, const Arguments& arguments, const std::vector<uint8_t>& out,
         const std::vector<uint8_t>& into);
  ~Staged();
  Staged(const Staged&) = delete;
  const Word* words() const { return words_.data(); }
  // Takes what is sent, and gives back what was received; MPI's code.
  int take();
  int give_back();

 private:
  std::vector<Word> words_;
  uint8_t* memory_[2] = {};
  uint64_t nbytes_[2] = {};
  DeviceCopy taken_, given_;
};

// Has Python make what the engine calls for a run on GPUs, in the order of what the caller has started there;
// MPI's code.
int begin_on_devices(DeviceJob* job);

// Carries out copies, in this thread; MPI's code.
int copy_devices(DeviceCopy* copy);

// What the caller has started on these buffers is there for MPI to see; its code.
int wait_for_devices(const Call& call);

}  // namespace layer
}  // namespace compcoll
