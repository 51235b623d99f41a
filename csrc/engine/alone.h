// One operation on memory of GPUs by itself, outside of any run.
#pragma once
#include <memory>
#include <vector>

#include "device.h"

namespace compcoll {
namespace engine {

class Alone {
 public:
  // It comes after what the caller has started on a GPU, and in these streams of it. Frames are made there.
  Alone(const Coding& coding, int gpu, const std::vector<void*>& streams);
  Alone(const Alone&) = delete;
  ~Alone();

  // Begins to encode a block of so many dimensions into a frame of its own; to look at the header of a frame
  // in memory of a GPU; to decode the frame, or add it; to copy bytes. A number NO_GPU stands for the host.
  void encode(void* data, uint32_t dtype, const std::vector<uint64_t>& shape, double carried, bool checksum);
  void open(void* frame, uint64_t nbytes, int gpu);
  void decode(void* data, uint32_t dtype, uint64_t n, int gpu, bool adds);
  void copy(void* to, int to_gpu, void* from, int from_gpu, uint64_t nbytes);
  // Moves on; whether the operation has ended.
  bool step();
  const Error& error() const { return error_; }
  // The frame that was made, or looked at.
  const Frame& frame() const { return frame_; }

 private:
  void begin(DeviceOp op);

  const Coding coding_;
  Pool pool_;
  Coder coder_;
  Gpu* const gpu_;
  std::shared_ptr<Marks> marks_;
  DeviceWork work_;
  Frame frame_;
  bool owns_ = false, ended_ = true;
  Error error_;
  std::vector<DeviceDone> done_;
};

}  // namespace engine
}  // namespace compcoll
