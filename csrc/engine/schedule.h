// One rank's operations in a collective, with their dependencies. compcoll/schedule/graph.py creates them and
// documents each operation.
#pragma once
#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace compcoll {
namespace engine {

enum Kind : int32_t { ENCODE, DECODE, DECODE_ADD, ADD, COPY, ROUND, WRITE_DECODED, SEND, RECV };

constexpr int32_t NONE = -1;

struct Op {
  int32_t kind, block, into, frame, other, sum, peer, tag;
  int32_t n_deps;  // operations that must complete first
  int32_t first;  // offset of its successors in Schedule::successors; they end at the next one's offset
  int32_t idle;  // 1 if it can wait until there is nothing else to do
  int32_t inside;  // 1 if its frame is coded for ranks of the same node, or its message stays in the node
};

struct BlockRef {
  int32_t buffer, wide;
  int64_t start, n;  // elements
  int64_t most;  // size of the largest frame that it may receive
  int64_t plane, row;  // shape (n / plane, plane / row, row); plane == row in two dimensions, both 0 in one
  // Block, index and number of chunks in the sender's block, if the sender may have cut it along other
  // planes.
  int32_t of, number, count;
};

// First and last element of chunk `number` of `count`, in a block of n elements sent in planes of `plane`
// elements: see compcoll/schedule/planes.py.
inline std::pair<uint64_t, uint64_t> plane_ends(uint64_t n, uint64_t number, uint64_t count, uint64_t plane) {
  using Wide = unsigned __int128;
  const Wide group = Wide(4) * plane, groups = n < group ? 1 : n / group;
  auto end = [&](uint64_t i) {
    Wide begun = (i * groups + count - 1) / count;
    return begun == groups ? n : uint64_t(begun * group);
  };
  return {end(number), end(number + 1)};
}

struct Scratch {
  int64_t n;
  int32_t wide;
};

struct Schedule {
  std::vector<Op> ops;
  std::vector<BlockRef> blocks;
  std::vector<int32_t> successors;
  std::vector<Scratch> scratch;
  int32_t rank, size, n_buffers, n_frames, n_tags;
  // True for the last message to or from each rank, by tag and order.
  std::vector<bool> ends;
  // Number of operations that use each frame or scratch buffer; after the last one, it returns to the pool.
  std::vector<int32_t> frame_users, scratch_users;
  // Elements that are encoded or decoded; for messages between nodes also by kind of operation, and the
  // number of those operations.
  uint64_t coded, coded_of[ADD + 1], n_coding;
  int32_t terms;  // number of ranks whose values are added; 0 if none
  // Caller's blocks that one operation writes and no other reads, and their total number of elements.
  std::vector<bool> final_blocks;
  uint64_t final_elements;
  // For each scratch block that is read: the other blocks that were written and overlap it.
  std::vector<std::vector<int32_t>> sources;

  void count_users() {
    coded = n_coding = 0;
    std::fill_n(coded_of, ADD + 1, 0);
    terms = 0;
    frame_users.assign(n_frames, 0);
    scratch_users.assign(scratch.size(), 0);
    for (const Op& op : ops) {
      if (op.kind == DECODE_ADD || op.kind == ADD) terms = size;
      if (op.kind <= ADD && op.block != NONE) {
        const auto n = uint64_t(blocks[op.block].n);
        if (op.kind != ADD) coded += n;
        if (!op.inside) coded_of[op.kind] += n, n_coding++;
      }
      for (int32_t frame : {op.frame, op.other, op.sum})
        if (frame != NONE) frame_users[frame]++;
      for (int32_t block : {op.block, op.into})
        if (block != NONE && blocks[block].buffer >= n_buffers)
          scratch_users[blocks[block].buffer - n_buffers]++;
    }
    find_ends();
    find_final();
    find_sources();
  }

  void find_ends() {
    std::map<std::pair<int32_t, int32_t>, size_t> found;  // by kind and rank
    for (size_t i = 0; i < ops.size(); i++) {
      if (ops[i].kind != SEND && ops[i].kind != RECV) continue;
      size_t& end = found.try_emplace({ops[i].kind, ops[i].peer}, i).first->second;
      if (ops[i].tag >= ops[end].tag) end = i;
    }
    ends.assign(ops.size(), false);
    for (const auto& [key, end] : found) ends[end] = true;
  }

  void find_final() {
    std::vector<int32_t> users(blocks.size());
    for (const Op& op : ops) {
      if (op.block != NONE && op.kind != RECV) users[op.block]++;
      // WRITE_DECODED writes the same values as its frame's encoder would have.
      if (op.into != NONE && op.kind != WRITE_DECODED) users[op.into]++;
    }
    final_blocks.assign(blocks.size(), false);
    final_elements = 0;
    for (const Op& op : ops) {
      const int32_t block = op.kind == DECODE                      ? op.block
                            : op.kind == COPY || op.kind == ENCODE ? op.into
                                                                   : NONE;
      if (block == NONE || users[block] > 1 || blocks[block].buffer >= n_buffers) continue;
      final_blocks[block] = true;
      final_elements += uint64_t(blocks[block].n);
    }
  }

  void find_sources() {
    std::vector<std::vector<int32_t>> written(scratch.size());
    std::vector<bool> seen(blocks.size());
    for (const Op& op : ops) {
      const int32_t block = op.into != NONE                              ? op.into
                            : op.kind == DECODE || op.kind == DECODE_ADD ? op.block
                                                                         : NONE;
      if (block == NONE || blocks[block].buffer < n_buffers || seen[block]) continue;
      seen[block] = true;
      written[blocks[block].buffer - n_buffers].push_back(block);
    }
    sources.assign(blocks.size(), {});
    seen.assign(blocks.size(), false);
    for (const Op& op : ops) {
      const bool reads = op.kind == ENCODE || op.kind == COPY || op.kind == ROUND;
      if (!reads || blocks[op.block].buffer < n_buffers || seen[op.block]) continue;
      seen[op.block] = true;
      const BlockRef& own = blocks[op.block];
      for (int32_t other : written[own.buffer - n_buffers]) {
        const BlockRef& from = blocks[other];
        if (other != op.block && from.start < own.start + own.n && own.start < from.start + from.n)
          sources[op.block].push_back(other);
      }
    }
  }

  bool has_successors(int32_t op) const { return successors_begin(op) != successors_end(op); }
  const int32_t* successors_begin(int32_t op) const { return successors.data() + ops[op].first; }
  const int32_t* successors_end(int32_t op) const {
    return successors.data() + (size_t(op) + 1 < ops.size() ? size_t(ops[op + 1].first) : successors.size());
  }
};

}  // namespace engine
}  // namespace compcoll
