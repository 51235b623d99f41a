// MPI through the functions of the library that the process has loaded, so neither its headers nor its
// compiler are needed. Handles are integers of 4 bytes (MPICH) or addresses (Open MPI, the standard ABI).
#pragma once
#include <memory>

#include "task.h"
#include "wire.h"

namespace compcoll {
namespace engine {

// Functions, sizes and handles of the MPI library, as found by mpi4py.
struct Library {
  void *isend, *irecv, *testsome, *test, *iprobe, *get_count, *grequest_complete;
  uint32_t handle_nbytes, status_nbytes, status_error_offset;
  uint64_t byte, request_null;  // handles
  int undefined, in_status, any_source;  // MPI_UNDEFINED, MPI_ERR_IN_STATUS, MPI_ANY_SOURCE
};

// A wire over a communicator whose errors are returned (MPI_ERRORS_RETURN).
std::unique_ptr<Wire> make_wire(const Library& library, uint64_t comm);

// A task for an mpi4py request, given the memory of its handle and of a status.
std::unique_ptr<Task> make_request(const Library& library, void* request, void* status, uint64_t nbytes);

// MPI's error code of such a task.
int error_of(const Task& task);

// Number of bytes received, from a status.
int64_t count_of(const Library& library, const void* status);

// Completes a generalized request.
int complete(const Library& library, uint64_t request);

}  // namespace engine
}  // namespace compcoll
