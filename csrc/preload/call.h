// One call of a collective, as compcoll/preload/_dispatch.pyx takes it.
#pragma once
#include "library.h"

namespace compcoll {
namespace preload {

enum Name {
  Alltoall,
  Alltoallv,
  Bcast,
  Allreduce,
  Allgather,
  Allgatherv,
  Reduce,
  Reduce_scatter,
  Reduce_scatter_block,
  Gather,
  Gatherv,
  Scatter,
  Scatterv,
  Alltoallw,
  n_names
};

// An operation's arguments. `kinds` has a letter for each: a buffer, a number, a vector of numbers, a type, types
// (w), an operation, a communicator. The numbers are the arguments' positions; displacements come behind counts.
struct Operation {
  const char* kinds;
  int sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, reduction;
  bool send_many, recv_many;  // whether there is a block for each rank
  bool pairs;                 // whether each pair of ranks decides alone
};

constexpr Operation operations[n_names] = {
    {"bntbntc", 0, 1, 2, 3, 4, 5, -1, -1, true, true, false},
    {"bvvtbvvtc", 0, 1, 3, 4, 5, 7, -1, -1, true, true, true},
    {"bntnc", -1, 1, 2, 0, 1, 2, 3, -1, false, false, false},
    {"bbntoc", 0, 2, 3, 1, 2, 3, -1, 4, false, false, false},
    {"bntbntc", 0, 1, 2, 3, 4, 5, -1, -1, false, true, false},
    {"bntbvvtc", 0, 1, 2, 3, 4, 6, -1, -1, false, true, false},
    {"bbntonc", 0, 2, 3, 1, 2, 3, 5, 4, false, false, false},
    {"bbvtoc", 0, 2, 3, 1, 2, 3, -1, 4, false, false, false},
    {"bbntoc", 0, 2, 3, 1, 2, 3, -1, 4, true, false, false},
    {"bntbntnc", 0, 1, 2, 3, 4, 5, 6, -1, false, true, false},
    {"bntbvvtnc", 0, 1, 2, 3, 4, 6, 7, -1, false, true, true},
    {"bntbntnc", 0, 1, 2, 3, 4, 5, 6, -1, true, false, false},
    {"bvvtbntnc", 0, 1, 3, 4, 5, 6, 7, -1, true, false, true},
    {"bvvwbvvwc", 0, 1, 3, 4, 5, 7, -1, -1, true, true, true},
};

constexpr int count_arguments(const char* kinds) { return *kinds ? 1 + count_arguments(kinds + 1) : 0; }

// A communicator whose calls are offered to Python; hangs on MPI's as an attribute.
struct Comm {
  void* object = nullptr;   // of Python
  uint64_t min_nbytes = 0;  // smallest message that is compressed
  bool pairs_alone = true;  // whether pairs of ranks decide without the others
  bool messages = false;    // whether messages may be compressed: no rank has used the communicator before
  int rank = 0, size = 1;
};

enum Form { blocking, nonblocking, persistent };

struct Call {
  int name, form;
  bool wide;  // whether counts and displacements have 64 bits
  const Comm* comm;
  Word sendbuf, recvbuf;
  int64_t sendcount, recvcount;
  const void *sendcounts, *senddispls, *recvcounts, *recvdispls;
  Word sendtype, recvtype;  // handles; of Alltoallw the addresses of arrays of them, as C has them
  int root;
  Word request;        // the handle of a call that is not blocking
  void* prepared;      // of a persistent call, Python's object
  const void* caller;  // an address in the program
};

// Sends, receives and probes.
enum MessageName {
  Send,
  Ssend,
  Isend,
  Issend,
  Recv,
  Irecv,
  Sendrecv,
  Isendrecv,
  Sendrecv_replace,
  Isendrecv_replace,
  Probe,
  Iprobe,
  Mprobe,
  Improbe,
  Mrecv,
  Imrecv,
  Send_init,
  Ssend_init,
  Recv_init,
  n_message_names
};

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
  int (*start)(void* prepared,
               Word* request);  // begins a persistent call; gives the request that waits for it
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
