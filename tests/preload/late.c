/* The rank that the argument names is late, by so many milliseconds, in an MPI_Allreduce and in a message. */
#include <mpi.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char** argv) {
  enum { n = 1 << 17 };
  int rank, late = atoi(argv[1]);
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  double *a = calloc(n, sizeof *a), *b = calloc(n, sizeof *b);
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == late) usleep(1000 * atoi(argv[2]));
  MPI_Allreduce(a, b, n, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == late) usleep(1000 * atoi(argv[2]));
  if (rank == late) MPI_Send(a, n, MPI_DOUBLE, 1 - late, 7, MPI_COMM_WORLD);
  else MPI_Recv(b, n, MPI_DOUBLE, MPI_ANY_SOURCE, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  return MPI_Finalize();
}
