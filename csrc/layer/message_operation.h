// Messages under way: their sends, and what becomes of them.
#pragma once
#include <memory>

#include "compressed_send.h"
#include "pending_operation.h"
#include "receive_task.h"

namespace compcoll {
namespace layer {

// One or two messages under way, of one call.
class MessageOperation : public PendingOperation {
 public:
  MessageOperation(std::shared_ptr<Comm> comm, Name name, Form form)
      : PendingOperation(std::move(comm), name, form) {}
  // `arrived`: what a matched probe has received.
  int begin_receive(MessageBufferRef buffer, int source, int tag,
                    std::shared_ptr<ReceivedMessage> arrived = nullptr);
  // `chunks` is null where MPI sends it as it is, by a nonblocking function.
  int begin_send(MessageBufferRef buffer, std::shared_ptr<const MessageChunks> chunks, int dest, int tag,
                 Name name);
  // It ends with this code of MPI's, if it is one.
  void fail(int code) { failed_ = failed_ ? failed_ : code; }
  // What was begun before there was an error.
  void give_up();
  void fill_status(void* status) const override;
  void cancel() override;
  void abandon() override;

 protected:
  Tasks tasks() override;
  void finish() override;
  int conclude() override;
  int problem() override { return 0; }

 private:
  std::shared_ptr<ReceiveTask> in_;
  std::unique_ptr<CompressedSend> out_;
  MessageBufferRef sent_;
  Word request_ = 0;  // of what MPI sends
  bool longer_ = false;  // since compressed it would be longer
  alignas(8) char status_[most_nbytes_of_status] = {};
  std::shared_ptr<engine::Task> plain_;
  double began_ = 0;
  int failed_ = 0;
};

}  // namespace layer
}  // namespace compcoll
