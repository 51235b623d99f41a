/* Two ranks free the requests of large receives while these are active, and end MPI. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char** argv) {
  int rank, n = 400000;
  MPI_Request requests[2];
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  double *a = calloc(n, sizeof *a), *b = calloc(n, sizeof *b);
  MPI_Irecv(b, n, MPI_DOUBLE, 1 - rank, 0, MPI_COMM_WORLD, requests);
  MPI_Request_free(requests);
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Isend(a, n, MPI_DOUBLE, 1 - rank, 0, MPI_COMM_WORLD, requests + 1);
  MPI_Wait(requests + 1, MPI_STATUS_IGNORE);
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Finalize();
  if (rank == 0) printf("ended\n");
  return 0;
}
