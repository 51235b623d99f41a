/* A program with one mistake, named by its argument; "returns" asks for error codes, and prints whether it got one. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IS(name) (strcmp(argv[1], name) == 0)

int main(int argc, char** argv) {
  int rank, size, n = 60000, code = 0;
  MPI_Init(&argc, &argv);
  MPI_Comm comm;
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  double *a = calloc((size_t)n * size, sizeof *a), *b = calloc((size_t)n * size, sizeof *b);
  if (IS("truncated")) {
    if (rank == 0) MPI_Send(a, n, MPI_DOUBLE, 1, 0, comm);
    if (rank == 1) MPI_Recv(b, n / 2, MPI_DOUBLE, 0, 0, comm, MPI_STATUS_IGNORE);
  } else if (IS("counts")) {
    code = MPI_Bcast(a, rank ? n / 2 : n, MPI_DOUBLE, 0, comm);
  } else if (IS("type")) {
    code = MPI_Allreduce(a, b, n, MPI_DATATYPE_NULL, MPI_SUM, comm);
  } else if (IS("uncommitted")) {
    MPI_Datatype pair;
    MPI_Type_contiguous(2, MPI_DOUBLE, &pair);
    code = MPI_Bcast(a, n / 2, pair, 0, comm);
  } else if (IS("freed")) {
    MPI_Comm old = comm;
    MPI_Comm_free(&comm);
    code = MPI_Alltoall(a, n, MPI_DOUBLE, b, n, MPI_DOUBLE, old);
  } else if (IS("null")) {
    code = MPI_Alltoall(a, n, MPI_DOUBLE, b, n, MPI_DOUBLE, MPI_COMM_NULL);
  } else if (IS("root")) {
    code = MPI_Bcast(a, n, MPI_DOUBLE, size + 3, comm);
  } else if (IS("returns")) {
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    code = MPI_Bcast(a, n, MPI_DOUBLE, size + 3, comm);
    printf("%s\n", code ? "an error code" : "no error code");
    code = 0;
  }
  MPI_Finalize();
  return code != 0;
}
