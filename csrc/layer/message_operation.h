// Pending point-to-point messages.
#pragma once
#include <memory>

#include "compressed_send.h"
#include "pending_operation.h"
#include "receive_task.h"

namespace compcoll {
namespace layer {

// The pending messages of one call: a send, a receive, or both.
class MessageOperation : public PendingOperation {
 public:
  MessageOperation(std::shared_ptr<Comm> comm, Name name, Form form)
      : PendingOperation(std::move(comm), name, form) {}
  // `arrived`: the message, if a matched probe has received it already.
  int begin_receive(MessageBufferRef buffer, int source, int tag,
                    std::shared_ptr<ReceivedMessage> arrived = nullptr);
  // MPI sends the message as it is, by a nonblocking function, if `chunks` is null.
  int begin_send(MessageBufferRef buffer, std::shared_ptr<const MessageChunks> chunks, int dest, int tag,
                 Name name);
  // Sets the code that the operation ends with, unless it is 0 or an earlier error has set one.
  void fail(int code) { failed_ = failed_ ? failed_ : code; }
  // After an error: cancels the receive and abandons the operation.
  void give_up();
  void fill_status(void* status) const override;
  void cancel() override;
  void abandon() override;

 protected:
  Tasks tasks() override;
  void finish() override;
  int conclude() override;
  int problem() override { return 0; }
  std::string text() const override;

 private:
  // The other rank of a message, its tag and size.
  struct Envelope {
    int peer, tag;
    uint64_t nbytes;
  };
  Envelope sent_to_ = {}, received_from_ = {};
  std::shared_ptr<ReceiveTask> in_;
  std::unique_ptr<CompressedSend> out_;
  MessageBufferRef sent_;
  Word request_ = 0;  // of a send that MPI carries out
  bool longer_ = false;  // MPI sends the message because its frame would be longer
  alignas(8) char status_[most_nbytes_of_status] = {};
  std::shared_ptr<engine::Task> plain_;
  double began_ = 0;
  int failed_ = 0;
};

}  // namespace layer
}  // namespace compcoll
