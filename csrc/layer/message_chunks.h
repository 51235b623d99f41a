// How compressed messages are cut into chunks, and how received frames are decoded.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>

#include "engine/run.h"
#include "python_thread.h"
#include "statistics.h"

namespace compcoll {
namespace layer {

// The chunks of a message of `n` elements.
struct ChunkLayout {
  // `step`: elements of a chunk, or 0 for a single chunk. `plane` and `row`: a shape, as in engine::BlockRef.
  ChunkLayout(uint64_t n, uint32_t itemsize, uint64_t step, uint64_t plane = 0, uint64_t row = 0);
  uint64_t n, itemsize, step, plane, row;
  uint64_t first, count;  // elements of the first chunk, and the number of further chunks
  // The sender's or receiver's schedule for the further chunks, in a buffer of the whole message. `drops`:
  // received chunks are discarded.
  std::shared_ptr<const engine::Schedule> schedule(int peer, bool sends, bool on_gpu, bool drops) const;
};

// How messages of one type, size, destination and device are sent, as Python has decided once.
class MessageChunks {
 public:
  MessageChunks(const engine::Coding& coding, PythonRef python_ref, std::shared_ptr<const Decision> decision,
                const ChunkLayout& layout, bool on_gpu)
      : coding(coding),
        python_ref(std::move(python_ref)),
        decision(std::move(decision)),
        layout(layout),
        on_gpu_(on_gpu) {}
  const engine::Coding coding;
  const PythonRef python_ref;  // Python's side of the coding
  const std::shared_ptr<const Decision> decision;
  const ChunkLayout layout;
  // The sender's schedule, cached from the second message on if it has few chunks: a size may occur only
  // once.
  std::shared_ptr<const engine::Schedule> schedule(int dest) const;

 private:
  const bool on_gpu_;  // true if the sender's buffer is on a GPU
  mutable std::mutex mutex_;
  mutable bool is_used_ = false;
  mutable std::shared_ptr<const engine::Schedule> schedule_;
};

// Decodes frames of any codec to elements of one type; with Python's side of it.
struct Receiving {
  engine::Coding coding;
  PythonRef python_ref;
};
void set_receiving(uint32_t dtype, const engine::Coding& coding, PythonRef python_ref);
const Receiving& receiving(uint32_t dtype);

}  // namespace layer
}  // namespace compcoll
