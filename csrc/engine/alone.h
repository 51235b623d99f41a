// A single operation on GPU memory, outside of any run.
#pragma once
#include <memory>
#include <vector>

#include "device.h"

namespace compcoll {
namespace engine {

class Alone {
 public:
  // The operation is ordered after the caller's work on `gpu`, and after these streams. Frames are made
  // there.
  Alone(const Coding& coding, int gpu, const std::vector<void*>& streams);
  Alone(const Alone&) = delete;
  ~Alone();

  // Start one operation: encode a block into a new frame; read the header of a frame in GPU memory; decode or
  // add that frame; copy bytes. The GPU number NO_GPU means host memory.
  void encode(void* data, uint32_t dtype, const std::vector<uint64_t>& shape, double carried, bool checksum);
  void open(void* frame, uint64_t nbytes, int gpu);
  void decode(void* data, uint32_t dtype, uint64_t n, int gpu, bool adds);
  void copy(void* to, int to_gpu, void* from, int from_gpu, uint64_t nbytes);
  // Progresses; true if the operation has ended.
  bool step();
  const Error& error() const { return error_; }
  // The frame that was encoded or opened.
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
