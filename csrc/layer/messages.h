// Messages between two ranks: how they are sent and received on marked communicators.
//
// A compressed send is on its way when a nonblocking function returns: its first message is, and the engine
// encodes and sends the other chunks while the program computes. A receive that may get one is MPI's own, of
// bytes, into scratch memory, or the buffer itself where a first message fits there in any case and no other
// receive has a part of it.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "devices.h"
#include "landing.h"
#include "pending_operation.h"
#include "requests.h"
#include "streams.h"

namespace compcoll {
namespace layer {

// A row of the table of messages.
struct Row {
  const char *name, *kinds;
  Name op;  // under which it is counted
  Form form;
};

// What one was given; one buffer alone, sent and received into, is the one to receive into.
struct Message {
  Name name;
  Comm* comm = nullptr;
  const void* caller = nullptr;
  bool exists = true;  // whether MPI has the function
  bool sends = false, receives = false;
  Word sendbuf = 0, sendtype = 0, recvbuf = 0, recvtype = 0;
  int64_t sendcount = 0, recvcount = 0;
  int dest = 0, sendtag = 0, source = 0, recvtag = 0;
  void* status = nullptr;  // as C has it; null where nobody wants one
  void *request = nullptr, *flag = nullptr, *message = nullptr;  // where results go
  const Row& row() const;
  uint64_t sent() const { return sendcount > 0 ? uint64_t(sendcount) * nbytes_of(sendtype) : 0; }
  uint64_t room() const { return recvcount > 0 ? uint64_t(recvcount) * nbytes_of(recvtype) : 0; }
};

extern const Row* const rows;  // from n_operations on
inline const Row& Message::row() const { return rows[name - n_operations]; }
inline int failed(const Message& m, int code) { return code ? raise(m.comm->handle, code) : 0; }

// The range of memory from the first to the last byte of `count` entries.
Range stretch_of(Word address, int64_t count, Word type);

// A program's memory that is sent from or received into.
class Buffer {
 public:
  // `sent`: or to be received into.
  Buffer(Word address, int64_t count, Word type, bool sent);
  // Bytes of one's own, of elements of a type.
  Buffer(std::vector<uint8_t> bytes, const Buffer& like);
  ~Buffer();
  Buffer(const Buffer&) = delete;

  bool sound() const { return type_ != nullptr; }  // else MPI has something to say
  const Type& type() const { return *type_; }  // while the program has not freed it
  Word address = 0, handle = 0;  // as MPI is to have them
  int64_t count = 0;
  uint64_t nbytes = 0;
  uint32_t element = 0;
  bool known = true;  // whether it is known where its bytes lie
  int gpu = engine::NO_GPU;
  bool on_device() const { return gpu != engine::NO_GPU; }
  // Whether they lie there for MPI too.
  bool is_on_gpu() const { return on_device() && !mirror_; }
  // MPI's code of memory that the call cannot use: a stream of its GPU is being captured.
  int refused() const { return refused_ ? code_ : 0; }
  engine::Place place{nullptr};
  std::vector<uint64_t> shape;

  bool is_run() const { return known && !place.layout; }
  // Has memory of a GPU that MPI is not to see stand for by a copy on the host.
  void mirror();
  // Copies it from the memory of a GPU, behind what the program had started there, and so many bytes back;
  // MPI's code. Without a mirror what the program had started is waited for alone.
  int take();
  int give_back(uint64_t nbytes);
  static constexpr uint64_t all = ~uint64_t(0);
  // Where its bytes lie on a GPU, side by side, and what comes before all work on them.
  engine::Place on_gpu{nullptr};
  const MarksRef& marks() const { return marks_; }
  // The bytes one behind the other; and the opposite, of so many.
  std::vector<uint8_t> packed() const;
  void unpack(const uint8_t* bytes, uint64_t n);
  // Calls `write` with each stretch of memory where `n` bytes belong, in order.
  void each_stretch(const uint8_t* bytes, uint64_t n, const Landing::Write& write) const;
  // The range of host memory where `n` bytes of a message lie; empty on a GPU.
  Range range(uint64_t n) const;
  // A committed datatype with the places of the layout's bytes; 0 if MPI cannot make one.
  Word type_of_bytes();
  // Has memory of its own if it is not known where the bytes lie: frames are decoded there.
  void keep_type();

 private:
  void unpack_by_mpi(const uint8_t* bytes, uint64_t n, Word address) const;

  const Type* type_ = nullptr;
  Word kept_ = 0;  // a duplicate of a datatype that the program may free
  Word of_bytes_ = 0;
  std::vector<uint8_t> bytes_;
  uint8_t* mirror_ = nullptr;
  int copy(bool to_host, uint64_t nbytes, bool alone);

  const bool sent_;
  Word lower_ = 0;  // of the first byte, on the GPU
  uint64_t stretch_ = 0;  // of all of them
  bool lost_ = false;  // a GPU may still use the mirror, which is kept
  MarksRef marks_;
  int code_ = 0;
  bool refused_ = false;
};

using BufferRef = std::shared_ptr<Buffer>;

// One that has arrived, by a receive or a matched probe.
struct Arrived {
  std::vector<uint8_t> bytes;
  alignas(8) char status[most_nbytes_of_status] = {};
};

// A message on its way in.
class Incoming : public engine::Task {
 public:
  Incoming(std::shared_ptr<Comm> comm, BufferRef buffer);
  ~Incoming() override;
  // Posts a receive; MPI's code.
  int post(int source, int tag);
  // Takes one that has arrived.
  void take(std::shared_ptr<Arrived> arrived);
  void cancel();
  // Releases the receive's memory for other receives: it is not waited for any more.
  void leave() { landing_.looked(0); }

  bool step() override;
  bool done() override;
  bool broken() const override { return run_ && run_->broken(); }
  bool is_long() const override { return run_ ? run_->is_long() : nbytes_ > long_nbytes; }
  bool is_on_device() const override { return is_on_device_; }
  void rest(double seconds) override {
    first_up_.is_on_device() ? first_up_.rest(seconds) : run_ ? run_->rest(seconds) : Task::rest(seconds);
  }
  void waited(double seconds) override { run_ ? run_->waited(seconds) : void(); }

  // Of one that is done: puts values where they belong that are elsewhere, and then MPI's code.
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
  const BufferRef buffer_;
  const std::shared_ptr<Notices> notices_;
  std::unique_ptr<engine::Task> request_task_;
  Word request_ = 0;
  alignas(8) char status_[most_nbytes_of_status] = {};
  uint8_t* scratch_ = nullptr;
  uint64_t scratch_nbytes_ = 0, nbytes_ = 0;  // the latter of the whole message
  std::shared_ptr<Arrived> message_;
  Landing landing_;
  std::vector<uint8_t> unpacked_;  // where the bytes cannot be written yet, or it is not known where they lie
  bool waits_ = false;  // whether some of them cannot
  bool apart_ = false;  // whether MPI receives what may be a first message apart from the rest
  std::atomic<bool> arrived_{false}, cancels_{false};
  bool compressed_ = false;
  uint8_t* first_ = nullptr;  // values of the first chunk, pinned, on their way to a GPU
  Copies first_up_{false};
  std::atomic<bool> is_on_device_{false};
  std::shared_ptr<engine::Run> run_;
  engine::Stats stats_;
  int error_ = 0;
};

// A message on its way out, compressed.
class Outgoing {
 public:
  Outgoing(std::shared_ptr<Comm> comm, std::shared_ptr<const MessageChunks> chunks, BufferRef buffer)
      : chunks(std::move(chunks)), comm_(std::move(comm)), buffer_(std::move(buffer)) {}
  ~Outgoing();
  // MPI's code; nothing has begun where the first message would be longer than all values.
  int begin(int dest, int tag, bool synchronous);
  bool has_begun() const { return !first_.empty(); }
  std::vector<std::shared_ptr<engine::Task>> tasks() const;
  // Of one that is done; MPI's code.
  int conclude();
  // No more chunks are encoded from the buffer, not even where a message of their receiver arrives.
  void leave() { run_ && !buffer_->on_device() ? run_->give_up() : void(); }
  const engine::Stats& stats() const { return stats_; }
  const std::shared_ptr<const MessageChunks> chunks;

 private:
  engine::Error encode_first(engine::Frame* frame);

  const std::shared_ptr<Comm> comm_;
  const BufferRef buffer_;
  FirstMessage first_;
  Word request_ = 0;
  alignas(8) char status_[most_nbytes_of_status] = {};
  std::shared_ptr<engine::Task> first_task_;
  std::shared_ptr<engine::Run> run_;
  std::shared_ptr<PrivateComm> frames_;
  engine::Stats stats_;
  int error_ = 0;
};

// One or two messages under way, of one call.
class MessageOperation : public PendingOperation {
 public:
  MessageOperation(std::shared_ptr<Comm> comm, Name name, Form form)
      : PendingOperation(std::move(comm), name, form) {}
  // `arrived`: what a matched probe has received.
  int begin_receive(BufferRef buffer, int source, int tag, std::shared_ptr<Arrived> arrived = nullptr);
  // `chunks` is null where MPI sends it as it is, by a nonblocking function.
  int begin_send(BufferRef buffer, std::shared_ptr<const MessageChunks> chunks, int dest, int tag, Name name);
  // It ends with this code of MPI's, if it is one.
  void fail(int code) { failed_ = failed_ ? failed_ : code; }
  // What was begun before there was an error.
  void give_up();
  void tell(void* status) const override;
  void cancel() override;
  void abandon() override;

 protected:
  Tasks tasks() override;
  void finish() override;
  int conclude() override;
  int problem() override { return 0; }

 private:
  std::shared_ptr<Incoming> in_;
  std::unique_ptr<Outgoing> out_;
  BufferRef sent_;
  Word request_ = 0;  // of what MPI sends
  bool longer_ = false;  // since compressed it would be longer
  alignas(8) char status_[most_nbytes_of_status] = {};
  std::shared_ptr<engine::Task> plain_;
  double began_ = 0;
  int failed_ = 0;
};

// Waits for the messages of a call, or starts its request, as its form is; MPI's code.
int complete(const Message& message, MessageOperation& transfer, Word* request);

// A receive of a matched message, and a probe, which `next` has MPI carry out; MPI's code. `status` is the
// probe's argument.
int receive_matched(Message message, const std::function<int()>& next);
int look_for_message(const Message& message, Word* status, const std::function<int()>& next);

}  // namespace layer
}  // namespace compcoll
