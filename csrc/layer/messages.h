// Messages between two ranks: how they are sent and received on marked communicators.
//
// A compressed send is on its way when a nonblocking function returns: its first message is, and the engine
// encodes and sends the other chunks while the program computes. A receive that may get one is MPI's own, of
// bytes, into scratch memory, or the buffer itself where a first message fits there in any case and no other
// receive has a part of it.
#pragma once
#include <functional>
#include <memory>

#include "message_operation.h"

namespace compcoll {
namespace layer {

// A row of the table of messages.
struct MessageRow {
  const char *name, *kinds;
  Name op;  // under which it is counted
  Form form;
};

// What one was given; one buffer alone, sent and received into, is the one to receive into.
struct MessageArguments {
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
  const MessageRow& row() const;
  uint64_t sent() const { return sendcount > 0 ? uint64_t(sendcount) * nbytes_of(sendtype) : 0; }
  uint64_t room() const { return recvcount > 0 ? uint64_t(recvcount) * nbytes_of(recvtype) : 0; }
};

extern const MessageRow* const rows;  // from n_operations on
inline const MessageRow& MessageArguments::row() const { return rows[name - n_operations]; }
inline int failed(const MessageArguments& m, int code) { return code ? raise(m.comm->handle, code) : 0; }

// Reads the arguments of a message.
MessageArguments message_of(Name name, bool large_count, const Word* words);

// Serves a message; false where MPI is to carry it out as it came. `request` is given.
bool serve_message(const MessageArguments& m, Word* request, int* error);

// Waits for the messages of a call, or starts its request, as its form is; MPI's code.
int complete(const MessageArguments& message, MessageOperation& operation, Word* request);

// A receive of a matched message, and a probe, which `next` has MPI carry out; MPI's code. `status` is the
// probe's argument.
int receive_matched(MessageArguments message, const std::function<int()>& next);
int look_for_message(const MessageArguments& message, Word* status, const std::function<int()>& next);

}  // namespace layer
}  // namespace compcoll
