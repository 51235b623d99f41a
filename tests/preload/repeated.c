/* Repeats the same MPI_Alltoall as often as its argument says. */
#include <mpi.h>
#include <stdlib.h>

int main(int argc, char** argv) {
  int size, n = 1 << 16;
  MPI_Init(&argc, &argv);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  double *a = calloc((size_t)n * size, sizeof *a), *b = calloc((size_t)n * size, sizeof *b);
  for (int i = 0; i < atoi(argv[1]); i++) MPI_Alltoall(a, n, MPI_DOUBLE, b, n, MPI_DOUBLE, MPI_COMM_WORLD);
  return MPI_Finalize();
}
