// One call of a collective, as compcoll/preload/_dispatch.pyx takes it.
#pragma once
#include <string_view>

#include "library.h"
#include "operations.h"

namespace compcoll {
namespace preload {

// Where an argument's parts stand among those of a call; displacements come behind counts.
struct Positions { int buf, count, type; };

// An operation's arguments. `kinds` has a letter for each: a buffer, a number, a vector of numbers, a type, types
// (w), an operation, a root, a communicator.
struct Operation {
  const char *name, *kinds;
  bool send_many, recv_many;  // whether there is a block for each rank
  bool pairs;                 // whether each pair of ranks decides alone
  bool listed;                // whether there are counts for each rank
  Positions send, recv;       // of one buffer alone, which is sent and received into, the latter
  int root, reduction, comm;

  constexpr Operation(const char* name, std::string_view all, bool send_many, bool recv_many, bool pairs)
      : name(name),
        kinds(all.data()),
        send_many(send_many),
        recv_many(recv_many),
        pairs(pairs),
        listed(all.find('v') != all.npos),
        send{0, int(all.find_first_of("nv")), int(all.find_first_of("tw"))},
        recv{int(all.rfind('b')), int(all.rfind('b')) + 1, int(all.find_last_of("tw"))},
        root(int(all.find('r'))),
        reduction(int(all.find('o'))),
        comm(int(all.find('c'))) {
    if (recv.buf == 0) send.buf = -1;
  }
};

#define COMPCOLL_NAME(n, name, ...) name,
#define COMPCOLL_FACTS(n, name, method, fortran, ...) {#name, __VA_ARGS__},
enum Name { ACCELERATED(COMPCOLL_NAME) n_names };
constexpr Operation operations[] = {ACCELERATED(COMPCOLL_FACTS)};

// A communicator whose calls are offered to Python; hangs on MPI's as an attribute.
struct Comm {
  void* object = nullptr;   // of Python
  uint64_t min_nbytes = 0;  // smallest message that is compressed
  bool pairs_alone = true;  // whether pairs of ranks decide without the others
  bool messages = false;    // whether messages may be compressed: no rank has used the communicator before
  int rank = 0, size = 1;
};

enum Form { blocking, nonblocking, persistent };

// One side of a call: a buffer of so many entries, or with counts and displacements for each rank.
struct Side {
  Word buf;
  int64_t count;
  const void *counts, *displs;
  Word type;  // a handle; of types the address of an array of them, as C has it
  char kind;  // v of displacements, w of types as well, t of neither
};

struct Call {
  int name, form;
  bool wide;  // whether counts and displacements have 64 bits
  const Comm* comm;
  Side send, recv;
  int root;
  Word request;        // the handle of a call that is not blocking
  void* prepared;      // of a persistent call, Python's object
  const void* caller;  // an address in the program
};

// Sends, receives and probes. A function's arguments have a letter each, in mpi4py's order: the buffer, number, type,
// destination and tag of a send (bntdg), of a receive with its source (BNTSG), a communicator, and where a request,
// status, flag or message goes (qsfm).
// clang-format off
#define MESSAGES(ROW, MATCHED, PROBE)                          \
  ROW(6, Send, send, "bntdgc")                                 \
  ROW(6, Ssend, ssend, "bntdgc")                               \
  ROW(7, Isend, isend, "bntdgcq")                              \
  ROW(7, Issend, issend, "bntdgcq")                            \
  ROW(7, Recv, recv, "BNTSGcs")                                \
  ROW(7, Irecv, irecv, "BNTSGcq")                              \
  ROW(12, Sendrecv, sendrecv, "bntdgBNTSGcs")                  \
  ROW(12, Isendrecv, isendrecv, "bntdgBNTSGcq")                \
  ROW(9, Sendrecv_replace, sendrecv_replace, "BNTdgSGcs")      \
  ROW(9, Isendrecv_replace, isendrecv_replace, "BNTdgSGcq")    \
  PROBE(4, Probe, probe, "SGcs")                               \
  PROBE(5, Iprobe, iprobe, "SGcfs")                            \
  PROBE(5, Mprobe, mprobe, "SGcms")                            \
  PROBE(6, Improbe, improbe, "SGcfms")                         \
  MATCHED(5, Mrecv, mrecv, "BNTms")                            \
  MATCHED(5, Imrecv, imrecv, "BNTmq")                          \
  ROW(7, Send_init, send_init, "bntdgcq")                      \
  ROW(7, Ssend_init, ssend_init, "bntdgcq")                    \
  ROW(7, Recv_init, recv_init, "BNTSGcq")
// clang-format on
struct MessageKinds { const char *name, *kinds; };

#define COMPCOLL_KINDS(n, name, fortran, kinds) {#name, kinds},
enum MessageName { MESSAGES(COMPCOLL_NAME, COMPCOLL_NAME, COMPCOLL_NAME) n_message_names };
constexpr MessageKinds messages[] = {MESSAGES(COMPCOLL_KINDS, COMPCOLL_KINDS, COMPCOLL_KINDS)};

// What one of them was given and gives; one buffer alone, sent and received into, is the one to receive into.
struct Message {
  int name;
  const Comm* comm;
  Word sendbuf, sendtype, recvbuf, recvtype;
  int64_t sendcount, recvcount;
  int dest, sendtag, source, recvtag;
  void* status;        // MPI's, as C has it; null where nobody wants one
  Word request;        // given
  Word message;        // the handle of a matched message
  int flag;            // given
  void* prepared;      // as in Call
  const void* caller;
};

// Functions of the extension module; a result of `declined` leaves the call to MPI.
constexpr int declined = -1;
struct Dispatch {
  // Collective over a communicator; `parent` is what it was made of, of which it is a duplicate or has some ranks.
  int (*attach)(Word handle, Comm* comm, const Comm* parent, bool is_duplicate);
  void (*release)(Word handle, Comm* comm);
  int (*run)(Call* call);
  int (*transfer)(Message* message);
  int (*start)(void* prepared, Word* request);  // gives the request that waits for the call
  void (*free)(void* prepared, bool is_active);
  uint64_t min_nbytes;  // the smallest of any message that is compressed
  Word sum;             // MPI_SUM
  Word byte;            // MPI_BYTE
};

// Offers a call to Python; false where MPI is to carry it out. `request` is where the handle of a call goes that
// is not blocking.
bool offer(Name name, Form form, bool wide, const Word* words, Word* request, const void* caller, int* error);

// Attaches a communicator that has just been made, of a `parent` where that is attached; collective. An error code
// of MPI.
int attach_new(Word comm, const Comm* parent = nullptr, bool is_duplicate = false);

// The same of COMM_WORLD, after which all that is made of it is attached.
int attach_world();
bool world_is_attached();

// What is known of a communicator; nullptr of one that is not attached.
const Comm* find(Word comm);

// The same of one with which new ones have all in common; nullptr of others, which nobody accelerates.
const Comm* find_parent(Word comm);

// Bytes of so many entries.
uint64_t bytes(int64_t count, Word type);

// Whether a message of so many entries may be compressed.
bool is_large(const Comm& comm, int64_t count, Word type);

// A communicator is about to be freed.
void release(Word comm);

}  // namespace preload
}  // namespace compcoll
