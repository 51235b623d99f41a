// Sends of compressed messages.
#pragma once
#include <memory>
#include <vector>

#include "comm.h"
#include "first_message.h"
#include "message_buffer.h"
#include "message_chunks.h"

namespace compcoll {
namespace layer {

// A pending send of a compressed message.
class CompressedSend {
 public:
  CompressedSend(std::shared_ptr<Comm> comm, std::shared_ptr<const MessageChunks> chunks,
                 MessageBufferRef buffer)
      : chunks(std::move(chunks)), comm_(std::move(comm)), buffer_(std::move(buffer)) {}
  ~CompressedSend();
  // Sends the first message and begins the chunks; MPI's code. Nothing is sent if the first message would be
  // longer than all values.
  int begin(int dest, int tag, bool synchronous);
  bool has_begun() const { return !first_.empty(); }
  std::vector<std::shared_ptr<engine::Task>> tasks() const;
  // Concludes a send whose tasks are done; MPI's code.
  int conclude();
  // Stops encoding chunks from the buffer, even if a message from their receiver arrives.
  void release() { run_ && !buffer_->on_device() ? run_->give_up() : void(); }
  const engine::Stats& stats() const { return stats_; }
  const std::shared_ptr<const MessageChunks> chunks;

 private:
  engine::Error encode_first(engine::Frame* frame);

  const std::shared_ptr<Comm> comm_;
  const MessageBufferRef buffer_;
  FirstMessage first_;
  Word request_ = 0;
  alignas(8) char status_[most_nbytes_of_status] = {};
  std::shared_ptr<engine::Task> first_task_;
  std::shared_ptr<engine::Run> run_;
  std::shared_ptr<PrivateComm> frames_;
  engine::Stats stats_;
  int error_ = 0;
};

}  // namespace layer
}  // namespace compcoll
