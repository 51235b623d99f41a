// Values that are not contiguous in memory: where each byte of the packed block lies, in packed order.
//
// A layout is a tree. Its origin is the address of its first packed byte; strides and offsets may be
// negative.
//
//   RUN    `nbytes` contiguous bytes
//   LOOP   children[0], `count` times, `stride` bytes apart
//   RUNS   contiguous bytes at each of `offsets`: bytes starts[i] to starts[i + 1] of the packed block
//   PARTS  children[i] at each of `offsets`, with the same `starts`
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace compcoll {
namespace engine {

struct Layout {
  enum Kind : int32_t { RUN, LOOP, RUNS, PARTS };

  Kind kind;
  uint64_t nbytes;  // of the packed block
  uint64_t count = 0;
  int64_t stride = 0;
  std::vector<int64_t> offsets;
  std::vector<uint64_t> starts;
  std::vector<std::shared_ptr<const Layout>> children;
  uint64_t each = 0;  // RUNS: size of each run, 0 if they differ
};

using LayoutRef = std::shared_ptr<const Layout>;

class Gpu;

// A buffer: its address, and for a buffer with a layout the number of packed bytes before it.
struct Place {
  Place(uint8_t* data, LayoutRef layout = nullptr, uint64_t first = 0)
      : data(data), layout(std::move(layout)), first(first) {}

  uint8_t* data;
  LayoutRef layout;
  uint64_t first;
  Gpu* gpu = nullptr;  // null: in host memory
};

LayoutRef run_layout(uint64_t nbytes);
LayoutRef loop_layout(uint64_t count, int64_t stride, LayoutRef child);
LayoutRef runs_layout(std::vector<int64_t> offsets, const std::vector<uint64_t>& nbytes);
LayoutRef parts_layout(std::vector<int64_t> offsets, std::vector<LayoutRef> children);

// Copy bytes `first` to `end` of the packed block out of memory, and back into it.
void gather(const Layout& layout, const uint8_t* origin, uint64_t first, uint64_t end, uint8_t* packed);
void scatter(const Layout& layout, uint8_t* origin, uint64_t first, uint64_t end, const uint8_t* packed);
// Calls `visit` with the contiguous runs in bytes `first` to `end` of the packed block, in groups of equal
// runs: the first run's offset, a run's size, the number of runs and their stride.
using VisitRuns = std::function<void(int64_t offset, uint64_t nbytes, uint64_t count, int64_t stride)>;
void each_run(const Layout& layout, int64_t offset, uint64_t first, uint64_t end, const VisitRuns& visit);
// The address of these bytes if they are contiguous, else null.
uint8_t* in_one_piece(const Layout& layout, uint8_t* origin, uint64_t first, uint64_t end);

}  // namespace engine
}  // namespace compcoll
