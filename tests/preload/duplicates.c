/* Makes communicators from COMM_WORLD and frees them. The first argument is the number that exist at once; each other
   one is the way to make them (dup, split or cart). Prints the number of wrong values in an exchange on the last
   communicator of each. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 40000 };

static int wrong_values(const char* how, int n, double* a, double* b) {
  int rank, size, periodic = 0, wrong = 0, total;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm* made = malloc(sizeof(MPI_Comm) * n);
  for (int i = 0; i < n; i++) {
    if (!strcmp(how, "dup")) MPI_Comm_dup(MPI_COMM_WORLD, made + i);
    else if (!strcmp(how, "split")) MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, made + i);
    else MPI_Cart_create(MPI_COMM_WORLD, 1, &size, &periodic, 0, made + i);
  }
  for (int i = 0; i < N * size; i++) a[i] = rank + i / N;
  MPI_Comm_rank(made[n - 1], &rank);
  MPI_Alltoall(a, N, MPI_DOUBLE, b, N, MPI_DOUBLE, made[n - 1]);
  for (int i = 0; i < N * size; i++) {
    int from = strcmp(how, "split") ? i / N : size - 1 - i / N;
    wrong += b[i] != from + rank;
  }
  for (int i = 0; i < n; i++) MPI_Comm_free(made + i);
  free(made);
  MPI_Allreduce(&wrong, &total, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  return total;
}

int main(int argc, char** argv) {
  int rank, size, bad = 0;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  double *a = malloc(sizeof(double) * N * size), *b = malloc(sizeof(double) * N * size);
  for (int i = 2; i < argc; i++) {
    int total = wrong_values(argv[i], atoi(argv[1]), a, b);
    if (rank == 0) printf("%d wrong values\n", total);
    bad += total;
  }
  MPI_Finalize();
  return bad != 0;
}
