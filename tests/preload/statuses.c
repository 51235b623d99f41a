/* Statuses of large messages, and errors of aliased buffers, on two ranks. Prints one line on rank 0. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define MARK 12345

static int wrong = 0, rank;

static void expect(const char* what, int is_right) {
  if (is_right) return;
  wrong++;
  fprintf(stderr, "rank %d: %s\n", rank, what);
}

static int class_of(int code) {
  int class;
  MPI_Error_class(code, &class);
  return class;
}

/* MPI_ERROR of a call with a single status stays as it is. */
static void check(const char* what, MPI_Status* status, int tag) {
  expect(what, status->MPI_SOURCE == 1 - rank && status->MPI_TAG == tag && status->MPI_ERROR == MARK);
  status->MPI_SOURCE = status->MPI_TAG = -5;
  status->MPI_ERROR = MARK;
}

int main(int argc, char** argv) {
  int n = 40000, total, code, size, flag = 0;
  char version[MPI_MAX_LIBRARY_VERSION_STRING];
  MPI_Request request;
  MPI_Message message;
  MPI_Status status = {0};
  MPI_Comm comm;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN); /* that of Waitall */
  MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  MPI_Get_library_version(version, &size);
  double *a = calloc(n, sizeof *a), *b = calloc(n, sizeof *b);
  int other = 1 - rank;
  status.MPI_ERROR = MARK;
  MPI_Isend(a, n, MPI_DOUBLE, other, 1, comm, &request);
  MPI_Recv(b, n, MPI_DOUBLE, other, MPI_ANY_TAG, comm, &status);
  check("Recv", &status, 1);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  MPI_Sendrecv(a, n, MPI_DOUBLE, other, 2, b, n, MPI_DOUBLE, other, 2, comm, &status);
  check("Sendrecv", &status, 2);
  MPI_Sendrecv_replace(b, n, MPI_DOUBLE, other, 3, other, 3, comm, &status);
  status.MPI_ERROR = MARK; /* MPICH does not leave it alone here */
  check("Sendrecv_replace", &status, 3);
  MPI_Isend(a, n, MPI_DOUBLE, other, 4, comm, &request);
  MPI_Probe(other, 4, comm, &status);
  check("Probe", &status, 4);
  while (!flag) MPI_Iprobe(other, 4, comm, &flag, &status);
  check("Iprobe", &status, 4);
  MPI_Mprobe(other, 4, comm, &message, &status);
  check("Mprobe", &status, 4);
  MPI_Mrecv(b, n, MPI_DOUBLE, &message, &status);
  check("Mrecv", &status, 4);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  /* Truncated ones. */
  MPI_Isend(a, n, MPI_DOUBLE, other, 5, comm, &request);
  code = MPI_Recv(b, n / 2, MPI_DOUBLE, other, 5, comm, &status);
  expect("no truncation by Recv", class_of(code) == MPI_ERR_TRUNCATE);
  check("truncated Recv", &status, 5);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  MPI_Request requests[2];
  MPI_Status statuses[2] = {{0}};
  statuses[0].MPI_TAG = -5;
  MPI_Irecv(b, n / 2, MPI_DOUBLE, other, 6, comm, requests);
  MPI_Isend(a, n, MPI_DOUBLE, other, 6, comm, requests + 1);
  code = MPI_Waitall(2, requests, statuses);
  expect("no error of Waitall", class_of(code) == MPI_ERR_IN_STATUS);
  expect("tag of a truncated Irecv", statuses[0].MPI_TAG == 6 && statuses[0].MPI_SOURCE == other);
  /* Buffers that MPICH rejects. */
  if (version[0] == 'M') {
    expect("aliased Alltoall", MPI_Alltoall(a, n / 2, MPI_DOUBLE, a, n / 2, MPI_DOUBLE, comm) != MPI_SUCCESS);
    expect("aliased Allreduce", MPI_Allreduce(a, a, n, MPI_DOUBLE, MPI_SUM, comm) != MPI_SUCCESS);
    int counts[2] = {n / 2, n / 2}, displs[2] = {0, n / 2};
    expect("aliased Alltoallv", MPI_Alltoallv(a, counts, displs, MPI_DOUBLE, a, counts, displs, MPI_DOUBLE, comm));
  }
  MPI_Allreduce(&wrong, &total, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) printf("%d wrong on 2 ranks\n", total);
  MPI_Comm_free(&comm);
  MPI_Finalize();
  return total != 0;
}
