// Operations on memory that compiled code does not reach, as callbacks: compcoll/engine/device has them for
// GPUs.
#pragma once
#include <vector>

#include "coding.h"
#include "schedule.h"

namespace compcoll {
namespace engine {

// Elements of a buffer of the schedule.
struct DeviceBlock {
  int32_t buffer;
  int64_t start, n;
};

struct DeviceFrame {
  int32_t index;  // NONE for none
  const uint8_t* memory;
  uint64_t nbytes;
};

struct DeviceOp {
  int32_t op;
  Kind kind;  // ENCODE, DECODE, DECODE_ADD, ADD and COPY, or RECV of a frame whose header is on the device
  int32_t made;  // the frame that it makes, or NONE
  DeviceBlock block, into;
  DeviceFrame frame, other;
  double carried;  // ENCODE: the error of the block's values
};

// Memory for a frame that arrives for a block on a device.
struct DeviceRoom {
  int32_t frame, buffer;
  uint64_t nbytes;
  uint8_t* memory;
};

// An operation that has ended.
struct DeviceDone {
  int32_t op;  // NONE for what the device was asked for besides the schedule
  bool failed;
  uint8_t* memory;  // of the frame that it made
  const uint8_t* header;  // of that, on the host
  uint64_t nbytes;
  double bound;  // what it adds to the error of a block
};

struct DeviceStep {
  const std::vector<DeviceOp>& begun;
  const std::vector<int32_t>& released;  // frames that nobody needs any more
  std::vector<DeviceDone>& done;
  bool last = false;  // whether nothing is started behind any operation under way
};

// Called by the thread that steps the run, with no lock held. False where they raised, which has been kept.
struct Device {
  void* context = nullptr;
  bool direct = false;  // whether frames of blocks on a device stay there
  bool (*receive)(void* context, std::vector<DeviceRoom>& rooms) = nullptr;
  // Starts operations together, and takes what has ended.
  bool (*step)(void* context, DeviceStep& step) = nullptr;

  explicit operator bool() const { return step != nullptr; }
};

}  // namespace engine
}  // namespace compcoll
