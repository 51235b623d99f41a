/* The transpose of a matrix whose rows are spread over the ranks, by MPI_Alltoall.

   Each rank has n / size rows of n values. Each block of columns is sent to the rank that owns its transpose,
   and is transposed there. The program does not use compcoll itself.

   mpicc transpose.c -o transpose -lm
   mpiexec -n 2 ./transpose
   mpiexec -n 2 compcoll run --codec lossless ./transpose        # or bfp:bits=30, auto, ...
*/

#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static double value(int row, int column, int n) {
  return sin(2 * M_PI * row / n) + 0.5 * cos(6 * M_PI * column / n);
}

/* Writes this rank's rows of the transpose; `send` and `recv` are scratch buffers of the same size. */
static void transpose(const double* rows, double* transposed, double* send, double* recv, int n,
                      MPI_Comm comm) {
  int size;
  MPI_Comm_size(comm, &size);
  int part = n / size, block = part * part;
  for (int peer = 0; peer < size; peer++)
    for (int i = 0; i < part; i++)
      for (int j = 0; j < part; j++) send[peer * block + i * part + j] = rows[i * n + peer * part + j];
  MPI_Alltoall(send, block, MPI_DOUBLE, recv, block, MPI_DOUBLE, comm);
  for (int peer = 0; peer < size; peer++)
    for (int i = 0; i < part; i++)
      for (int j = 0; j < part; j++) transposed[j * n + peer * part + i] = recv[peer * block + i * part + j];
}

int main(int argc, char** argv) {
  int rank, size, n = argc > 1 ? atoi(argv[1]) : 512;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (n < size || n % size) {
    if (rank == 0) fprintf(stderr, "%d rows cannot be spread evenly over %d ranks\n", n, size);
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  int part = n / size, first = rank * part;
  size_t nbytes = sizeof(double) * part * n;
  double *rows = malloc(nbytes), *transposed = malloc(nbytes), *send = malloc(nbytes), *recv = malloc(nbytes);
  for (int i = 0; i < part; i++)
    for (int j = 0; j < n; j++) rows[i * n + j] = value(first + i, j, n);

  double start = MPI_Wtime();
  transpose(rows, transposed, send, recv, n, MPI_COMM_WORLD);
  double seconds = MPI_Wtime() - start, error = 0, largest;

  for (int i = 0; i < part; i++)
    for (int j = 0; j < n; j++) error = fmax(error, fabs(transposed[i * n + j] - value(j, first + i, n)));
  MPI_Reduce(&error, &largest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  if (rank == 0) printf("transpose of %d x %d values: largest error %.1e, %.4f s\n", n, n, largest, seconds);
  free(rows), free(transposed), free(send), free(recv);
  return MPI_Finalize();
}
