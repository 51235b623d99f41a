// How compressed messages are cut into chunks, and how frames of them are decoded.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>

#include "engine/run.h"
#include "python_thread.h"
#include "statistics.h"

namespace compcoll {
namespace layer {

// How a message of `n` elements is cut.
struct ChunkLayout {
  // `plane` and `row` as in engine::BlockRef, of one that has a shape; `step` elements of a chunk, 0 where
  // there is one.
  ChunkLayout(uint64_t n, uint32_t itemsize, uint64_t step, uint64_t plane = 0, uint64_t row = 0);
  uint64_t n, itemsize, step, plane, row;
  uint64_t first, count;  // elements of the first chunk, and the number of those behind it
  // One side of those, in a buffer that holds the whole message, on a GPU or not; `drops`: what is received is
  // of no use.
  std::shared_ptr<const engine::Schedule> schedule(int peer, bool sends, bool on_gpu, bool drops) const;
};

// How messages of one type, size and destination, on GPUs or not, are sent: what Python decides once.
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
  const PythonRef python_ref;  // Python's side of that
  const std::shared_ptr<const Decision> decision;
  const ChunkLayout layout;
  // The sender's schedule, kept from the second message on if chunks are few: sizes may vary.
  std::shared_ptr<const engine::Schedule> schedule(int dest) const;

 private:
  const bool on_gpu_;  // where the sender has them
  mutable std::mutex mutex_;
  mutable bool is_used_ = false;
  mutable std::shared_ptr<const engine::Schedule> schedule_;
};

// How frames of any codec are decoded to elements of a type, with Python's side of it.
struct Receiving {
  engine::Coding coding;
  PythonRef python_ref;
};
void set_receiving(uint32_t dtype, const engine::Coding& coding, PythonRef python_ref);
const Receiving& receiving(uint32_t dtype);

}  // namespace layer
}  // namespace compcoll
