/* Like a Python extension module: calls MPI on a communicator of its own. */
#include <mpi.h>

static MPI_Comm own;

void begin(void) { MPI_Comm_dup(MPI_COMM_WORLD, &own); }

void transpose(double* a, double* b, int n) { MPI_Alltoall(a, n, MPI_DOUBLE, b, n, MPI_DOUBLE, own); }

void swap(double* a, double* b, int n, int peer) {
  MPI_Sendrecv(a, n, MPI_DOUBLE, peer, 0, b, n, MPI_DOUBLE, peer, 0, own, MPI_STATUS_IGNORE);
}

void end(void) { MPI_Comm_free(&own); }
