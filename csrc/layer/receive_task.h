// Receives of messages.
#pragma once
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "comm.h"
#include "message_buffer.h"
#include "notices.h"

namespace compcoll {
namespace layer {

// A message that a matched probe has received.
struct ReceivedMessage {
  std::vector<uint8_t> bytes;
  alignas(8) char status[most_nbytes_of_status] = {};
};

// The receive of one message.
class ReceiveTask : public engine::Task {
 public:
  ReceiveTask(std::shared_ptr<Comm> comm, MessageBufferRef buffer);
  ~ReceiveTask() override;
  // Posts a receive; MPI's code.
  int post(int source, int tag);
  // Takes a message that a matched probe has received.
  void take(std::shared_ptr<ReceivedMessage> arrived);
  void cancel();
  // Releases the receive's memory for other receives: it is not waited for any more.
  void release() { landing_.end_in_place(0); }

  bool step() override;
  bool done() override;
  bool broken() const override { return run_ && run_->broken(); }
  bool is_long() const override { return run_ ? run_->is_long() : nbytes_ > long_nbytes; }
  bool is_on_device() const override { return is_on_device_; }
  void rest(double seconds) override {
    first_up_.is_on_device() ? first_up_.rest(seconds) : run_ ? run_->rest(seconds) : Task::rest(seconds);
  }
  void waited(double seconds) override {
    run_ ? run_->waited(seconds) : void(stats_.wait_seconds += seconds);
  }

  // Ends a task that is done: writes the values that are not in the buffer yet, and sets `error`.
  void finish();
  int error() const { return error_; }
  const void* status() const { return status_; }
  bool compressed() const { return compressed_; }
  const engine::Stats& stats() const { return stats_; }

 private:
  void look();
  void begin(const Opening& opening, const uint8_t* frame, int64_t length);
  void decode_first(const engine::Frame& frame, uint64_t n, const engine::Place& place);
  void put_scratch();
  void fail(int code) { error_ = error_ ? error_ : code; }
  int wrong_type(uint32_t element, uint64_t nbytes) const;
  int truncated(uint64_t nbytes) const;
  std::string text(uint64_t nbytes) const;

  const std::shared_ptr<Comm> comm_;
  const MessageBufferRef buffer_;
  const std::shared_ptr<Notices> notices_;
  std::unique_ptr<engine::Task> request_task_;
  Word request_ = 0;
  alignas(8) char status_[most_nbytes_of_status] = {};
  uint8_t* scratch_ = nullptr;
  uint64_t scratch_nbytes_ = 0, nbytes_ = 0;  // nbytes_: of the whole message
  std::shared_ptr<ReceivedMessage> message_;
  Landing landing_;
  std::vector<uint8_t> unpacked_;  // the message, if it cannot be written yet or the buffer's layout is
                                   // unknown
  bool waits_ = false;  // true if some bytes cannot be written yet
  bool apart_ = false;  // true if MPI receives the room of a first message apart from the rest
  std::atomic<bool> arrived_{false}, cancels_{false};
  bool compressed_ = false;
  uint8_t* first_ = nullptr;  // values of the first chunk, pinned, in flight to a GPU
  Copies first_up_{false};
  std::atomic<bool> is_on_device_{false};
  std::shared_ptr<engine::Run> run_;
  engine::Stats stats_;
  int error_ = 0;
};

}  // namespace layer
}  // namespace compcoll
