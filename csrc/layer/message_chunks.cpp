#include "message_chunks.h"

#include <algorithm>

#include "first_message.h"

namespace compcoll {
namespace layer {
namespace {

using engine::BlockRef;
using engine::NONE;
using engine::Op;
using engine::Schedule;

// The most chunks whose schedule is cached: each takes some 200 bytes.
constexpr uint64_t most_kept = 64;
// Chunks are whole blocks of every codec.
constexpr uint64_t chunk_unit = 1024;
// Most elements of a chunk that may have another shape: see compcoll/schedule/planes.py.
constexpr uint64_t most_whole = 1 << 18, most_large = 1 << 21;
Receiving all_receiving[COMPLEX128 + 1];

// Number of chunks of `nbytes` that are in flight at once: MPI announces and answers a chunk after all bytes
// that it has queued, so fewer chunks leave a direction of the wire idle. Both sizes are as in
// compcoll/policy/choices.py.
uint64_t window_of(uint64_t nbytes, bool on_gpu) {
  constexpr uint64_t least = 4, both_ways = 4 << 20, on_device = 32 << 20;
  return std::max(least, ((on_gpu ? on_device : both_ways) + nbytes - 1) / nbytes);
}

uint64_t step_of(uint64_t n, uint64_t most) {
  const uint64_t chunks = std::max<uint64_t>((n + most - 1) / most, 1), unit = chunks * chunk_unit;
  return std::max<uint64_t>((n + unit - 1) / unit, 1) * chunk_unit;
}

}  // namespace

void set_receiving(uint32_t dtype, const engine::Coding& coding, PythonRef python_ref) {
  all_receiving[dtype] = {coding, std::move(python_ref)};
}

const Receiving& receiving(uint32_t dtype) { return all_receiving[dtype]; }

// -- chunks

ChunkLayout::ChunkLayout(uint64_t n, uint32_t itemsize, uint64_t step, uint64_t plane, uint64_t row)
    : n(n), itemsize(itemsize), step(step), plane(plane), row(row), first(n), count(0) {
  if (!step || n <= std::min(step, largest_first_chunk / itemsize)) {
    this->plane = plane <= n ? plane : 0;
    return;
  }
  const uint64_t opening = std::min(step, opening_chunk / itemsize), rest = n - opening;
  const uint64_t each = step_of(rest, step);
  count = (rest + each - 1) / each;
  first = plane ? engine::plane_ends(n, 0, 1 + count, plane).second : opening;
}

std::shared_ptr<const Schedule> ChunkLayout::schedule(int peer, bool sends, bool on_gpu, bool drops) const {
  auto made = std::make_shared<Schedule>();
  const uint64_t rest = n - first, each = plane ? 0 : step_of(rest, step);
  const int32_t k = int32_t(count), ahead = int32_t(window_of(step * itemsize, on_gpu));
  auto add = [&](int32_t kind, int32_t chunk, bool message) {
    const int32_t block = message && sends ? NONE : chunk;
    const int32_t rank = message ? peer : NONE, tag = message ? chunk : NONE;
    made->ops.push_back({kind, block, NONE, chunk, NONE, NONE, rank, tag, 0, 0, 0, 0});
  };
  for (int32_t i = 0; i < k; i++) {
    BlockRef block = {0, 0, 0, 0, 0, 0, 0, NONE, 0, 1};
    if (plane) {
      auto [begin, end] = engine::plane_ends(n, uint64_t(i) + 1, 1 + count, plane);
      block.start = int64_t(begin), block.n = int64_t(end - begin);
      if (sends) block.plane = int64_t(plane), block.row = int64_t(row);
    } else {
      block.start = int64_t(first + uint64_t(i) * each);
      block.n = int64_t(std::min(each, n - uint64_t(block.start)));
    }
    block.most = drops ? int64_t(std::min(n, std::max({4 * step, most_whole, std::min(n / 16, most_large)})))
                       : block.n;
    made->blocks.push_back(block);
    add(sends ? engine::ENCODE : engine::RECV, i, !sends);
    if (!drops) add(sends ? engine::SEND : engine::DECODE, i, sends);
  }
  // A window of chunks is in flight at once: a sender's from encoding to the end of the send, a receiver's
  // only on the wire.
  const int32_t stride = drops ? 1 : 2, n_ops = stride * k;
  for (int32_t i = 0; i < n_ops; i++) {
    const int32_t chunk = i / stride, second = stride * chunk + 1;
    const bool on_wire = i % stride == int32_t(sends);
    const int32_t next_on_wire = on_wire ? stride * (chunk + ahead) : n_ops;
    const int32_t next_decoded = on_wire || sends ? n_ops : stride * (chunk + 2 * ahead);
    made->ops[size_t(i)].first = int32_t(made->successors.size());
    for (int32_t after : {i < second && !drops ? second : n_ops, next_on_wire, next_decoded}) {
      if (after >= n_ops) continue;
      made->successors.push_back(after);
      made->ops[size_t(after)].n_deps++;
    }
  }
  made->rank = 0, made->size = peer + 1, made->n_buffers = 1, made->n_frames = made->n_tags = k;
  made->count_users();
  return made;
}

std::shared_ptr<const Schedule> MessageChunks::schedule(int dest) const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (schedule_) return schedule_;
  auto made = layout.schedule(dest, true, on_gpu_, false);
  if (is_used_ && layout.count <= most_kept) schedule_ = made;
  is_used_ = true;
  return made;
}

}  // namespace layer
}  // namespace compcoll
