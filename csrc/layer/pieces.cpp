// Composes layouts from smaller ones, with as few loops as possible.
#include "pieces.h"

#include <algorithm>

namespace compcoll {
namespace layer {
namespace {

using engine::Layout;
using engine::LayoutRef;

const Piece empty = {0, engine::run_layout(0)};

bool same(const Layout& a, const Layout& b) {
  if (&a == &b) return true;
  if (a.kind != b.kind || a.nbytes != b.nbytes) return false;
  return a.kind == Layout::RUN ||
         (a.kind == Layout::LOOP && a.stride == b.stride && same(*a.children[0], *b.children[0]));
}

}  // namespace

Piece contiguous(uint64_t nbytes) { return {0, engine::run_layout(nbytes)}; }

Piece repeated(int64_t count, int64_t stride, const Piece& piece) {
  if (count <= 0 || !piece.nbytes()) return empty;
  if (count == 1) return piece;
  const Layout& layout = *piece.layout;
  if (piece.is_run() && stride == int64_t(layout.nbytes))
    return {piece.offset, engine::run_layout(uint64_t(count * stride))};
  if (layout.kind == Layout::LOOP && stride == int64_t(layout.count) * layout.stride) {
    uint64_t all = uint64_t(count) * layout.count;
    return {piece.offset, engine::loop_layout(all, layout.stride, layout.children[0])};
  }
  return {piece.offset, engine::loop_layout(uint64_t(count), stride, piece.layout)};
}

namespace {

// True if offsets are all the same distance apart.
bool even(const std::vector<int64_t>& offsets) {
  for (size_t i = 2; i < offsets.size(); i++)
    if (offsets[i] - offsets[i - 1] != offsets[1] - offsets[0]) return false;
  return true;
}

int64_t step_of(const std::vector<int64_t>& offsets) {
  return offsets.size() > 1 ? offsets[1] - offsets[0] : 0;
}

std::vector<int64_t> from_first(std::vector<int64_t> offsets) {
  const int64_t first = offsets[0];
  for (int64_t& offset : offsets) offset -= first;
  return offsets;
}

}  // namespace

Piece joined_runs(const std::vector<int64_t>& offsets, const std::vector<uint64_t>& nbytes) {
  std::vector<int64_t> at;
  std::vector<uint64_t> sizes;
  for (size_t i = 0; i < offsets.size(); i++) {
    if (!nbytes[i]) continue;
    if (!at.empty() && offsets[i] == at.back() + int64_t(sizes.back())) {
      sizes.back() += nbytes[i];
    } else {
      at.push_back(offsets[i]);
      sizes.push_back(nbytes[i]);
    }
  }
  if (at.empty()) return empty;
  bool alike = std::all_of(sizes.begin(), sizes.end(), [&](uint64_t size) { return size == sizes[0]; });
  if (alike && even(at))
    return repeated(int64_t(at.size()), step_of(at), {at[0], engine::run_layout(sizes[0])});
  const int64_t first = at[0];
  return {first, engine::runs_layout(from_first(std::move(at)), sizes)};
}

Piece joined(const std::vector<int64_t>& offsets, const std::vector<Piece>& pieces) {
  std::vector<int64_t> at;
  std::vector<LayoutRef> layouts;
  std::vector<uint64_t> sizes;
  bool runs = true, alike = true;
  for (size_t i = 0; i < pieces.size(); i++) {
    if (!pieces[i].nbytes()) continue;
    at.push_back(offsets[i] + pieces[i].offset);
    layouts.push_back(pieces[i].layout);
    sizes.push_back(pieces[i].nbytes());
    runs = runs && pieces[i].is_run();
    alike = alike && same(*layouts[0], *pieces[i].layout);
  }
  if (runs) return joined_runs(at, sizes);
  if (alike && even(at)) return repeated(int64_t(at.size()), step_of(at), {at[0], layouts[0]});
  const int64_t first = at[0];
  return {first, engine::parts_layout(from_first(std::move(at)), layouts)};
}

}  // namespace layer
}  // namespace compcoll
