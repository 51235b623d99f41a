// Values that do not lie side by side in memory: where the bytes of a packed block come from, in its order.
//
// A layout is a tree. Its origin is the address of its first packed byte; strides and offsets may be
// negative.
//
//   RUN    `nbytes` side by side
//   LOOP   `count` times children[0], `stride` bytes apart
//   RUNS   bytes side by side at each of `offsets`, from starts[i] to starts[i + 1] of the packed block
//   PARTS  children[i] at each of `offsets`, likewise
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
  uint64_t each = 0;  // RUNS: bytes of every one, 0 where they differ
};

using LayoutRef = std::shared_ptr<const Layout>;

class Gpu;

// A buffer: the address of its first byte, and where a layout has its bytes, those of the layout before it.
struct Place {
  Place(uint8_t* data, LayoutRef layout = nullptr, uint64_t first = 0)
      : data(data), layout(std::move(layout)), first(first) {}

  uint8_t* data;
  LayoutRef layout;
  uint64_t first;
  Gpu* gpu = nullptr;  // that it lies on, or the host
};

LayoutRef run_layout(uint64_t nbytes);
LayoutRef loop_layout(uint64_t count, int64_t stride, LayoutRef child);
LayoutRef runs_layout(std::vector<int64_t> offsets, const std::vector<uint64_t>& nbytes);
LayoutRef parts_layout(std::vector<int64_t> offsets, std::vector<LayoutRef> children);

// Copies bytes `first` to `end` of the packed block out of memory, and back.
void gather(const Layout& layout, const uint8_t* origin, uint64_t first, uint64_t end, uint8_t* packed);
void scatter(const Layout& layout, uint8_t* origin, uint64_t first, uint64_t end, const uint8_t* packed);
// Calls `visit` with the runs of bytes that make up bytes `first` to `end` of the packed block: where the
// first one lies, its bytes, and how many there are so far apart.
using VisitRuns = std::function<void(int64_t offset, uint64_t nbytes, uint64_t count, int64_t stride)>;
void each_run(const Layout& layout, int64_t offset, uint64_t first, uint64_t end, const VisitRuns& visit);
// Where these bytes lie, if they lie side by side; else null.
uint8_t* in_one_piece(const Layout& layout, uint8_t* origin, uint64_t first, uint64_t end);

}  // namespace engine
}  // namespace compcoll
