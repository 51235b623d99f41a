// MPI by way of the functions of the library that the process has loaded, so that neither its headers nor its
// compiler are needed. Handles are integers of 4 bytes (MPICH) or addresses (Open MPI, the standard ABI).
#pragma once
#include <memory>

#include "task.h"
#include "wire.h"

namespace compcoll {
namespace engine {

// Functions, sizes and handles of the MPI library, as mpi4py has them.
struct Library {
  void *isend, *irecv, *testsome, *test, *iprobe, *improbe, *get_count, *grequest_start, *grequest_complete;
  uint32_t handle_nbytes, status_nbytes, status_error_offset;
  uint64_t byte, request_null;  // handles
  int undefined, in_status;  // MPI_UNDEFINED, MPI_ERR_IN_STATUS
};

// A wire over a communicator, in which errors are returned.
std::unique_ptr<Wire> make_wire(const Library& library, uint64_t comm);

// One of mpi4py's requests, where it keeps its handle and a status.
std::unique_ptr<Task> make_request(const Library& library, void* request, void* status, uint64_t nbytes);

// The arrival of a message from `source` under `tag`, which is then MPI's to receive with the handle at
// `message`.
std::unique_ptr<Task> make_probe(const Library& library, uint64_t comm, int source, int tag, void* message,
                                 void* status);

// The error of either, MPI's code.
int error_of(const Task& task);

// Bytes of the message of which a status tells.
int64_t count_of(const Library& library, const void* status);

// Callbacks of a generalized request.
struct Answers {
  int (*query)(void* extra_state, void* status);
  int (*free)(void* extra_state);
  int (*cancel)(void* extra_state, int completed);
};

// Starts a generalized request, whose handle goes to `request`; MPI's error code.
int start(const Library& library, const Answers& answers, void* extra_state, void* request);

// Completes a generalized request.
int complete(const Library& library, uint64_t request);

}  // namespace engine
}  // namespace compcoll
