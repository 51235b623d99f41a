/* Statuses of large messages, and errors of aliased buffers, on two ranks. Prints one line on rank 0. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static double *a, *b;
static int n = 40000, other;

/* Checks source, tag, count, and MPI_ERROR unless several requests were waited for, which may set it. */
static void check_end(const char* what, MPI_Status* status, int tag, int of_one) {
  int doubles;
  MPI_Get_count(status, MPI_DOUBLE, &doubles);
  expect(what, status->MPI_SOURCE == other && status->MPI_TAG == tag && doubles == n - tag);
  if (of_one) expect(what, status->MPI_ERROR == MARK);
  int cancelled;
  MPI_Test_cancelled(status, &cancelled);
  expect(what, !cancelled);
}

/* A receive and a send of each kind, completed in each way. */
static void requests_of(MPI_Comm comm) {
  MPI_Request r[2], persistent[2];
  MPI_Status s[2], one;
  MPI_Message message;
  int flag, index, done, indices[2], tag = 20, found;
  const char* names[] = {"Wait", "Test", "Waitall", "Waitany", "Waitsome", "Testall", "Testany", "Testsome",
                         "Request_get_status"};
  MPI_Recv_init(b, n, MPI_DOUBLE, other, 50, comm, persistent);
  MPI_Send_init(a, n - 50, MPI_DOUBLE, other, 50, comm, persistent + 1);
  for (int kind = 0; kind < 3; kind++) {
    for (int way = 0; way < 9; way++) {
      char what[64];
      sprintf(what, "%s of kind %d", names[way], kind);
      memset(s, 0, sizeof s), memset(&one, 0, sizeof one);
      s[0].MPI_ERROR = s[1].MPI_ERROR = one.MPI_ERROR = MARK;
      tag = kind == 2 ? 50 : 20 + way;
      if (kind == 0) MPI_Irecv(b, n, MPI_DOUBLE, MPI_ANY_SOURCE, MPI_ANY_TAG, comm, r);
      if (kind < 2) MPI_Isend(a, n - tag, MPI_DOUBLE, other, tag, comm, r + 1);
      if (kind == 1) MPI_Mprobe(other, tag, comm, &message, MPI_STATUS_IGNORE), MPI_Imrecv(b, n, MPI_DOUBLE, &message, r);
      if (kind == 2) MPI_Startall(2, persistent), r[0] = persistent[0], r[1] = persistent[1];
      flag = done = 0;
      switch (way) {
        case 0: MPI_Wait(r, &one), check_end(what, &one, tag, 1), MPI_Wait(r + 1, &s[1]); break;
        case 1:
          while (!flag) MPI_Test(r, &flag, &one);
          check_end(what, &one, tag, 1), MPI_Wait(r + 1, &s[1]);
          break;
        case 2: MPI_Waitall(2, r, s), check_end(what, s, tag, 0); break;
        case 3:
          for (done = 0; done < 2; done++) {
            MPI_Waitany(2, r, &index, &one);
            if (index == 0) check_end(what, &one, tag, 1);
            expect(what, index == 0 || index == 1);
            one.MPI_ERROR = MARK;
          }
          break;
        case 4:
          while (done < 2) {
            MPI_Waitsome(2, r, &found, indices, s);
            for (int k = 0; k < found; k++)
              if (indices[k] == 0) check_end(what, s + k, tag, 0);
            done += found;
          }
          break;
        case 5:
          while (!flag) MPI_Testall(2, r, &flag, s);
          check_end(what, s, tag, 0);
          break;
        case 6:
          while (done < 2) {
            MPI_Testany(2, r, &index, &flag, &one);
            if (!flag) continue;
            if (index == 0) check_end(what, &one, tag, 1);
            one.MPI_ERROR = MARK, done++;
          }
          break;
        case 7:
          while (done < 2) {
            MPI_Testsome(2, r, &found, indices, s);
            for (int k = 0; k < found; k++)
              if (indices[k] == 0) check_end(what, s + k, tag, 0);
            done += found;
          }
          break;
        case 8:
          while (!flag) MPI_Request_get_status(r[0], &flag, &one);
          check_end(what, &one, tag, 1), MPI_Waitall(2, r, MPI_STATUSES_IGNORE);
      }
      if (kind < 2) expect(what, r[0] == MPI_REQUEST_NULL && r[1] == MPI_REQUEST_NULL);
    }
  }
  MPI_Request_free(persistent), MPI_Request_free(persistent + 1);
  /* A cancelled receive. */
  MPI_Irecv(b, n, MPI_DOUBLE, other, 60, comm, r);
  MPI_Cancel(r);
  MPI_Wait(r, &one);
  MPI_Test_cancelled(&one, &flag);
  expect("Cancel", flag);
}

/* A call with a single status must leave MPI_ERROR unchanged. */
static void check(const char* what, MPI_Status* status, int tag) {
  expect(what, status->MPI_SOURCE == 1 - rank && status->MPI_TAG == tag && status->MPI_ERROR == MARK);
  status->MPI_SOURCE = status->MPI_TAG = -5;
  status->MPI_ERROR = MARK;
}

int main(int argc, char** argv) {
  int total, code, size, flag = 0;
  char version[MPI_MAX_LIBRARY_VERSION_STRING];
  MPI_Request request;
  MPI_Message message;
  MPI_Status status = {0};
  MPI_Comm comm;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN); /* for Waitall */
  MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  MPI_Get_library_version(version, &size);
  a = calloc(n, sizeof *a), b = calloc(n, sizeof *b);
  other = 1 - rank;
  status.MPI_ERROR = MARK;
  MPI_Isend(a, n, MPI_DOUBLE, other, 1, comm, &request);
  MPI_Recv(b, n, MPI_DOUBLE, other, MPI_ANY_TAG, comm, &status);
  check("Recv", &status, 1);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  MPI_Sendrecv(a, n, MPI_DOUBLE, other, 2, b, n, MPI_DOUBLE, other, 2, comm, &status);
  check("Sendrecv", &status, 2);
  MPI_Sendrecv_replace(b, n, MPI_DOUBLE, other, 3, other, 3, comm, &status);
  status.MPI_ERROR = MARK; /* MPICH changes it here */
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
  requests_of(comm);
  /* Truncated receives. */
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
