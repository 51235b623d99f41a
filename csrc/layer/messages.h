// Messages between two ranks: how they are sent and received on marked communicators.
//
// When a nonblocking function returns, a compressed send is in flight: its first message has been sent, and
// the engine encodes and sends the other chunks while the program computes. A receive that may get a
// compressed message is posted with MPI as a receive of bytes into a scratch buffer. It is posted on the
// program's buffer if every first message fits there and no other receive overlaps it.
#pragma once
#include <functional>
#include <memory>

#include "message_operation.h"

namespace compcoll {
namespace layer {

// A row of the table of messages.
struct MessageRow {
  const char *name, *kinds;
  Name op;  // under which calls are counted
  Form form;
};

// Arguments of a function for messages. A single buffer for both directions is the receive buffer.
struct MessageArguments {
  Name name;
  Comm* comm = nullptr;
  const void* caller = nullptr;
  bool exists = true;  // true if MPI has the function
  bool sends = false, receives = false;
  Word sendbuf = 0, sendtype = 0, recvbuf = 0, recvtype = 0;
  int64_t sendcount = 0, recvcount = 0;
  int dest = 0, sendtag = 0, source = 0, recvtag = 0;
  void* status = nullptr;  // in C's form; null if the program ignores it
  void *request = nullptr, *flag = nullptr, *message = nullptr;  // where results go
  const MessageRow& row() const;
  uint64_t sent() const { return sendcount > 0 ? uint64_t(sendcount) * nbytes_of(sendtype) : 0; }
  uint64_t room() const { return recvcount > 0 ? uint64_t(recvcount) * nbytes_of(recvtype) : 0; }
};

extern const MessageRow* const rows;  // from n_operations on
inline const MessageRow& MessageArguments::row() const { return rows[name - n_operations]; }
inline int failed(const MessageArguments& m, int code) { return code ? raise(m.comm->handle, code) : 0; }

// Reads the arguments of a message.
MessageArguments message_of(Name name, bool large_count, const Word* words);

// Serves a message and sets `request`; false if MPI has to carry out the call unchanged.
bool serve_message(const MessageArguments& m, Word* request, int* error);

// Waits for the messages of a blocking call, or makes the request of a nonblocking one; MPI's code.
int submit_or_wait(const MessageArguments& message, MessageOperation& operation, Word* request);

// Serve a receive of a matched message, and a probe; MPI's code. `next` calls MPI's function, and `status` is
// the probe's status argument.
int receive_matched(MessageArguments message, const std::function<int()>& next);
int look_for_message(const MessageArguments& message, Word* status, const std::function<int()>& next);

}  // namespace layer
}  // namespace compcoll
