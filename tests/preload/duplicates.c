/* Makes communicators of COMM_WORLD and frees them: the first argument says how (dup, split or cart), the second how
   many there are at once. Prints the number of wrong values of an exchange on the last one; to standard error, where a
   third argument is given, the median microseconds that making and freeing took. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 40000 };

static int compare(const void* a, const void* b) {
  return *(const double*)a < *(const double*)b ? -1 : *(const double*)a > *(const double*)b;
}

int main(int argc, char** argv) {
  int rank, size, periodic = 0, wrong = 0, total, n = atoi(argv[2]);
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm* made = malloc(sizeof(MPI_Comm) * n);
  double *making = malloc(sizeof(double) * n), *freeing = malloc(sizeof(double) * n);
  for (int i = 0; i < n; i++) {
    double start = MPI_Wtime();
    if (!strcmp(argv[1], "dup")) MPI_Comm_dup(MPI_COMM_WORLD, made + i);
    else if (!strcmp(argv[1], "split")) MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, made + i);
    else MPI_Cart_create(MPI_COMM_WORLD, 1, &size, &periodic, 0, made + i);
    making[i] = MPI_Wtime() - start;
  }
  double *a = malloc(sizeof(double) * N * size), *b = malloc(sizeof(double) * N * size);
  for (int i = 0; i < N * size; i++) a[i] = rank + i / N;
  MPI_Comm_rank(made[n - 1], &rank);
  MPI_Alltoall(a, N, MPI_DOUBLE, b, N, MPI_DOUBLE, made[n - 1]);
  for (int i = 0; i < N * size; i++) {
    int from = strcmp(argv[1], "split") ? i / N : size - 1 - i / N;
    wrong += b[i] != from + rank;
  }
  for (int i = 0; i < n; i++) {
    double start = MPI_Wtime();
    MPI_Comm_free(made + i);
    freeing[i] = MPI_Wtime() - start;
  }
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Allreduce(&wrong, &total, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  qsort(making, n, sizeof *making, compare), qsort(freeing, n, sizeof *freeing, compare);
  if (rank == 0) printf("%d wrong values\n", total);
  if (rank == 0 && argc > 3)
    fprintf(stderr, "%s: %.1f us to make, %.1f us to free\n", argv[1], 1e6 * making[n / 2], 1e6 * freeing[n / 2]);
  MPI_Finalize();
  return total != 0;
}
