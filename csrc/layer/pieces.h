// Pieces of memory, of which the layouts of derived datatypes are put together.
#pragma once
#include <cstdint>
#include <vector>

#include "engine/layout.h"

namespace compcoll {
namespace layer {

// A layout, and where its first byte lies, from the start of what it is a part of.
struct Piece {
  int64_t offset = 0;
  engine::LayoutRef layout;

  uint64_t nbytes() const { return layout->nbytes; }
  bool is_run() const { return layout->kind == engine::Layout::RUN; }
};

// So many bytes side by side.
Piece contiguous(uint64_t nbytes);
// A piece so many times, `stride` bytes apart.
Piece repeated(int64_t count, int64_t stride, const Piece& piece);
// Bytes side by side at each offset; what touches is one.
Piece joined_runs(const std::vector<int64_t>& offsets, const std::vector<uint64_t>& nbytes);
// Pieces one behind the other in packed order, each at an offset of its own.
Piece joined(const std::vector<int64_t>& offsets, const std::vector<Piece>& pieces);

}  // namespace layer
}  // namespace compcoll
