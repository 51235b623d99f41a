#include "layout.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace compcoll {
namespace engine {
namespace {

constexpr int64_t line = 64;  // bytes of a cache line

// The two directions of a copy.
struct Gather {
  using Memory = const uint8_t*;
  using Packed = uint8_t*;
  static void copy(Memory memory, Packed packed, uint64_t nbytes) { memcpy(packed, memory, nbytes); }
};

struct Scatter {
  using Memory = uint8_t*;
  using Packed = const uint8_t*;
  static void copy(Memory memory, Packed packed, uint64_t nbytes) { memcpy(memory, packed, nbytes); }
};

// Copies parts of a layout, starting at its first part.
template <class Direction>
class Walk {
 public:
  explicit Walk(typename Direction::Packed packed) : packed_(packed) {}

  void part(const Layout& layout, typename Direction::Memory origin, uint64_t first, uint64_t end) {
    if (first >= end) return;
    if (end - first == layout.nbytes) return whole(layout, origin);
    switch (layout.kind) {
      case Layout::RUN: return run(origin + first, end - first);
      case Layout::LOOP: return loop_part(layout, origin, first, end);
      default: return parts_part(layout, origin, first, end);
    }
  }

 private:
  void run(typename Direction::Memory memory, uint64_t nbytes) {
    Direction::copy(memory, packed_, nbytes);
    packed_ += nbytes;
  }

  void whole(const Layout& layout, typename Direction::Memory origin) {
    switch (layout.kind) {
      case Layout::RUN: return run(origin, layout.nbytes);
      case Layout::LOOP: return loop(*layout.children[0], origin, layout.stride, layout.count);
      case Layout::RUNS: return runs(layout, origin, 0, layout.offsets.size());
      case Layout::PARTS:
        for (size_t i = 0; i < layout.offsets.size(); i++)
          whole(*layout.children[i], origin + layout.offsets[i]);
    }
  }

  void loop(const Layout& child, typename Direction::Memory origin, int64_t stride, uint64_t count) {
    if (child.kind == Layout::RUN)
      return strided(child.nbytes, count, [=](uint64_t i) { return origin + int64_t(i) * stride; });
    if (child.kind == Layout::LOOP && child.children[0]->kind == Layout::RUN) {
      const uint64_t each = child.children[0]->nbytes;
      if (std::abs(stride) < line && std::abs(child.stride) > line && count > 1) {
        switch (each) {
          case 4: return transposed<4>(child, origin, stride, count);
          case 8: return transposed<8>(child, origin, stride, count);
          case 16: return transposed<16>(child, origin, stride, count);
        }
      }
      for (uint64_t i = 0; i < count; i++) {
        typename Direction::Memory inner = origin + int64_t(i) * stride;
        const int64_t step = child.stride;
        strided(each, child.count, [=](uint64_t k) { return inner + int64_t(k) * step; });
      }
      return;
    }
    for (uint64_t i = 0; i < count; i++) whole(child, origin + int64_t(i) * stride);
  }

  // Copies the columns of a matrix one after another, a few at a time, because their elements share cache
  // lines.
  template <uint64_t NBYTES>
  void transposed(const Layout& column, typename Direction::Memory origin, int64_t stride, uint64_t count) {
    const uint64_t most = std::max<uint64_t>(line / std::max<int64_t>(std::abs(stride), 4), 2);
    for (uint64_t i = 0; i < count; i += most) {
      const uint64_t n = std::min(most, count - i);
      for (uint64_t row = 0; row < column.count; row++) {
        typename Direction::Memory memory = origin + int64_t(i) * stride + int64_t(row) * column.stride;
        typename Direction::Packed packed = packed_ + row * NBYTES;
        for (uint64_t k = 0; k < n; k++)
          Direction::copy(memory + int64_t(k) * stride, packed + k * column.nbytes, NBYTES);
      }
      packed_ += n * column.nbytes;
    }
  }

  void runs(const Layout& layout, typename Direction::Memory origin, size_t first, size_t end) {
    const int64_t* offsets = layout.offsets.data() + first;
    if (layout.each)
      return strided(layout.each, end - first, [=](uint64_t i) { return origin + offsets[i]; });
    for (size_t i = first; i < end; i++)
      run(origin + layout.offsets[i], layout.starts[i + 1] - layout.starts[i]);
  }

  // Copies `count` runs of the same size, which is usually an element's.
  template <class At>
  void strided(uint64_t nbytes, uint64_t count, At place) {
    switch (nbytes) {
      case 1: return fixed<1>(count, place);
      case 2: return fixed<2>(count, place);
      case 4: return fixed<4>(count, place);
      case 8: return fixed<8>(count, place);
      case 12: return fixed<12>(count, place);
      case 16: return fixed<16>(count, place);
      case 24: return fixed<24>(count, place);
      case 32: return fixed<32>(count, place);
      case 64: return fixed<64>(count, place);
    }
    for (uint64_t i = 0; i < count; i++) run(place(i), nbytes);
  }

  template <uint64_t NBYTES, class At>
  void fixed(uint64_t count, At place) {
    typename Direction::Packed packed = packed_;
    for (uint64_t i = 0; i < count; i++) Direction::copy(place(i), packed + i * NBYTES, NBYTES);
    packed_ = packed + count * NBYTES;
  }

  void loop_part(const Layout& layout, typename Direction::Memory origin, uint64_t first, uint64_t end) {
    const Layout& child = *layout.children[0];
    const uint64_t each = child.nbytes;
    uint64_t i = first / each;
    if (first % each) {
      const uint64_t begin = i * each;
      part(child, origin + int64_t(i) * layout.stride, first - begin, std::min(end - begin, each));
      first = ++i * each;
    }
    if (first >= end) return;
    const uint64_t n = (end - first) / each;
    loop(child, origin + int64_t(i) * layout.stride, layout.stride, n);
    i += n;
    part(child, origin + int64_t(i) * layout.stride, 0, end - i * each);
  }

  void parts_part(const Layout& layout, typename Direction::Memory origin, uint64_t first, uint64_t end) {
    const std::vector<uint64_t>& starts = layout.starts;
    size_t i = std::upper_bound(starts.begin(), starts.end(), first) - starts.begin() - 1;
    if (layout.kind == Layout::RUNS && first == starts[i]) {
      const size_t k = std::upper_bound(starts.begin(), starts.end(), end) - starts.begin() - 1;
      runs(layout, origin, i, k);
      i = k;
      first = starts[k];
    }
    for (; first < end; i++) {
      const uint64_t stop = std::min(end, starts[i + 1]);
      if (layout.kind == Layout::RUNS) run(origin + layout.offsets[i] + (first - starts[i]), stop - first);
      else part(*layout.children[i], origin + layout.offsets[i], first - starts[i], stop - starts[i]);
      first = stop;
    }
  }

  typename Direction::Packed packed_;
};

LayoutRef made(Layout layout) { return std::make_shared<const Layout>(std::move(layout)); }

}  // namespace

LayoutRef run_layout(uint64_t nbytes) { return made({Layout::RUN, nbytes}); }

LayoutRef loop_layout(uint64_t count, int64_t stride, LayoutRef child) {
  Layout layout = {Layout::LOOP, count * child->nbytes, count, stride};
  layout.children.push_back(std::move(child));
  return made(std::move(layout));
}

LayoutRef runs_layout(std::vector<int64_t> offsets, const std::vector<uint64_t>& nbytes) {
  Layout layout = {Layout::RUNS, 0};
  layout.each = nbytes.empty() ? 0 : nbytes[0];
  for (uint64_t n : nbytes) {
    layout.starts.push_back(layout.nbytes);
    layout.nbytes += n;
    if (n != layout.each) layout.each = 0;
  }
  layout.starts.push_back(layout.nbytes);
  layout.offsets = std::move(offsets);
  return made(std::move(layout));
}

LayoutRef parts_layout(std::vector<int64_t> offsets, std::vector<LayoutRef> children) {
  Layout layout = {Layout::PARTS, 0};
  for (const LayoutRef& child : children) {
    layout.starts.push_back(layout.nbytes);
    layout.nbytes += child->nbytes;
  }
  layout.starts.push_back(layout.nbytes);
  layout.offsets = std::move(offsets);
  layout.children = std::move(children);
  return made(std::move(layout));
}

void gather(const Layout& layout, const uint8_t* origin, uint64_t first, uint64_t end, uint8_t* packed) {
  Walk<Gather>(packed).part(layout, origin, first, end);
}

void scatter(const Layout& layout, uint8_t* origin, uint64_t first, uint64_t end, const uint8_t* packed) {
  Walk<Scatter>(packed).part(layout, origin, first, end);
}

void each_run(const Layout& layout, int64_t offset, uint64_t first, uint64_t end, const VisitRuns& visit) {
  if (first >= end) return;
  if (layout.kind == Layout::RUN) return visit(offset + int64_t(first), end - first, 1, 0);
  if (layout.kind == Layout::LOOP) {
    const Layout& child = *layout.children[0];
    while (first < end) {
      const uint64_t i = first / child.nbytes, begin = i * child.nbytes;
      const int64_t at = offset + int64_t(i) * layout.stride;
      const uint64_t whole = first == begin ? (end - first) / child.nbytes : 0;
      if (child.kind == Layout::RUN && whole) {
        visit(at, child.nbytes, whole, layout.stride);
        first += whole * child.nbytes;
        continue;
      }
      const uint64_t stop = std::min(end, begin + child.nbytes);
      each_run(child, at, first - begin, stop - begin, visit);
      first = stop;
    }
    return;
  }
  size_t i =
      size_t(std::upper_bound(layout.starts.begin(), layout.starts.end(), first) - layout.starts.begin()) - 1;
  for (; first < end; i++) {
    const uint64_t begin = layout.starts[i], stop = std::min(end, layout.starts[i + 1]);
    if (layout.kind == Layout::RUNS)
      visit(layout.offsets[i] + offset + int64_t(first - begin), stop - first, 1, 0);
    else each_run(*layout.children[i], offset + layout.offsets[i], first - begin, stop - begin, visit);
    first = stop;
  }
}

uint8_t* in_one_piece(const Layout& layout, uint8_t* origin, uint64_t first, uint64_t end) {
  const Layout* at = &layout;
  while (at->kind != Layout::RUN) {
    uint64_t begin;
    const Layout* child = nullptr;
    if (at->kind == Layout::LOOP) {
      child = at->children[0].get();
      const uint64_t i = first / child->nbytes;
      begin = i * child->nbytes;
      if (end - begin > child->nbytes) return nullptr;
      origin += int64_t(i) * at->stride;
    } else {
      const size_t i = std::upper_bound(at->starts.begin(), at->starts.end(), first) - at->starts.begin() - 1;
      begin = at->starts[i];
      if (end > at->starts[i + 1]) return nullptr;
      origin += at->offsets[i];
      if (at->kind == Layout::RUNS) return origin + (first - begin);
      child = at->children[i].get();
    }
    first -= begin;
    end -= begin;
    at = child;
  }
  return origin + first;
}

}  // namespace engine
}  // namespace compcoll
