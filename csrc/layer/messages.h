// Sends, receives and probes of programs of C and Fortran, which Python carries out
// (compcoll/preload/program.py).
#pragma once
#include <string_view>

#include "comm.h"
#include "message_table.h"

namespace compcoll {
namespace layer {

struct MessageKinds { const char *name, *kinds; };

#define COMPCOLL_MESSAGE_NAME(n, name, ...) name,
#define COMPCOLL_KINDS(n, name, fortran, kinds) {#name, kinds},
enum MessageName {
  MESSAGES(COMPCOLL_MESSAGE_NAME, COMPCOLL_MESSAGE_NAME, COMPCOLL_MESSAGE_NAME) n_message_names
};
constexpr MessageKinds messages[] = {MESSAGES(COMPCOLL_KINDS, COMPCOLL_KINDS, COMPCOLL_KINDS)};

// What one of them was given and gives; one buffer alone, sent and received into, is the one to receive into.
struct Message {
  int name;
  uint64_t comm;  // its number; 0 of a message that was matched before
  Word handle;
  Word sendbuf, sendtype, recvbuf, recvtype;
  int64_t sendcount, recvcount;
  int dest, sendtag, source, recvtag;
  void* status;  // MPI's, as C has it; null where nobody wants one
  Word request;  // given
  Word message;  // the handle of a matched message
  int flag;  // given
  void* prepared;  // Python's object of a persistent call
};

// Functions of Python's; a result of `declined` leaves the message to MPI.
constexpr int declined = -1;
struct Messenger {
  int (*transfer)(Message* message);
  int (*start)(void* prepared, Word* request);  // gives the request that waits for the call
  void (*free)(void* prepared, bool is_active);
};

// Whether a function of C is one of these.
bool is_message(std::string_view name);

// Has messages of marked communicators offered to Python: of those that no rank has used before they were
// marked, since a receive may have been posted that does not know of compression.
void take_messages(const Messenger& messenger);

}  // namespace layer
}  // namespace compcoll
