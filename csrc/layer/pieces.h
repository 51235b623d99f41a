// Pieces of memory, which make up the layouts of derived datatypes.
#pragma once
#include <cstdint>
#include <vector>

#include "engine/layout.h"

namespace compcoll {
namespace layer {

// A layout, and the offset of its first byte in the whole.
struct Piece {
  int64_t offset = 0;
  engine::LayoutRef layout;

  uint64_t nbytes() const { return layout->nbytes; }
  bool is_run() const { return layout->kind == engine::Layout::RUN; }
};

// Contiguous bytes.
Piece contiguous(uint64_t nbytes);
// `count` repetitions of a piece, `stride` bytes apart.
Piece repeated(int64_t count, int64_t stride, const Piece& piece);
// A run of bytes at each offset; adjacent runs are merged.
Piece joined_runs(const std::vector<int64_t>& offsets, const std::vector<uint64_t>& nbytes);
// Pieces in packed order, each at its own offset.
Piece joined(const std::vector<int64_t>& offsets, const std::vector<Piece>& pieces);

}  // namespace layer
}  // namespace compcoll
