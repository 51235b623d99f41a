/* Rank 0 frees the request of a large receive while it is active, and ends MPI before the message arrives. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char** argv) {
  int rank, n = 400000;
  MPI_Request request;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  double* a = calloc(n, sizeof *a);
  if (rank == 0) {
    MPI_Irecv(a, n, MPI_DOUBLE, 1, 0, MPI_COMM_WORLD, &request);
    MPI_Request_free(&request);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 1) {
    for (double start = MPI_Wtime(); MPI_Wtime() < start + 0.05;) continue;
    MPI_Send(a, n, MPI_DOUBLE, 0, 0, MPI_COMM_WORLD);
  }
  MPI_Finalize();
  if (rank == 0) printf("ended\n");
  return 0;
}
