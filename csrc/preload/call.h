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
  n_names
};

// An operation's arguments. `kinds` has a letter for each: a buffer, a number, a vector of int, a type, an
// operation, a communicator. The numbers are the arguments' positions; displacements come behind counts.
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
};

constexpr int count_arguments(const char* kinds) { return *kinds ? 1 + count_arguments(kinds + 1) : 0; }

// A communicator whose calls are offered to Python; hangs on MPI's as an attribute.
struct Comm {
  void* object = nullptr;   // of Python
  uint64_t min_nbytes = 0;  // smallest message that is compressed
  bool pairs_alone = true;  // whether pairs of ranks decide without the others
  int rank = 0, size = 1;
};

struct Call {
  int name, nonblocking;
  const Comm* comm;
  Word sendbuf, recvbuf;
  int64_t sendcount, recvcount;
  const int *sendcounts, *senddispls, *recvcounts, *recvdispls;
  Word sendtype, recvtype;  // handles
  int root;
  Word request;        // the handle of a nonblocking call
  const void* caller;  // an address in the program
};

// Functions of the extension module; a result of `declined` leaves the call to MPI.
constexpr int declined = -1;
struct Dispatch {
  int (*attach)(Word handle, Comm* comm);  // collective over a communicator
  void (*release)(Word handle, Comm* comm);
  int (*run)(Call* call);
  uint64_t min_nbytes;  // the smallest of any message that is compressed
  Word sum;             // MPI_SUM
};

// Offers a call to Python; false where MPI is to carry it out. `request` is where a nonblocking call's handle
// goes.
bool offer(Name name, const Word* words, Word* request, const void* caller, int* error);

// Attaches a communicator that has just been made; collective. An error code of MPI.
int attach_new(Word comm);

// A communicator is about to be freed.
void release(Word comm);

}  // namespace preload
}  // namespace compcoll
