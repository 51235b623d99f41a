/* Messages in each form between neighbours in a ring, with their statuses. Prints one line on rank 0, and ends with
   the number of wrong values. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int wrong = 0, rank, size, n, left, right;
static double *a, *b;
static MPI_Status status;

static double value(int from, int tag, int i) { return 1000.0 * from + 100.0 * tag + i % 97; }

static void fill(double* at, int tag) {
  for (int i = 0; i < n; i++) at[i] = value(rank, tag, i);
}

static void check(const char* what, const double* got, int count, int from, int tag) {
  for (int i = 0; i < count; i++)
    if (got[i] != value(from, tag, i)) {
      if (wrong++ < 5) fprintf(stderr, "rank %d: %s: [%d] is %g, not %g\n", rank, what, i, got[i], value(from, tag, i));
    }
  memset((void*)got, 0, sizeof(double) * count);
}

static void check_status(const char* what, const MPI_Status* s, int source, int tag, int count) {
  int doubles, bytes;
  MPI_Get_count(s, MPI_DOUBLE, &doubles);
  MPI_Get_count(s, MPI_BYTE, &bytes);
  if (s->MPI_SOURCE != source || s->MPI_TAG != tag || doubles != count || bytes != 8 * count) {
    wrong++;
    fprintf(stderr, "rank %d: %s: source %d, tag %d, %d doubles, %d bytes\n", rank, what, s->MPI_SOURCE, s->MPI_TAG,
            doubles, bytes);
  }
}

static void blocking(MPI_Comm comm, int count) {
  MPI_Request request;
  fill(a, 1);
  MPI_Isend(a, count, MPI_DOUBLE, right, 1, comm, &request);
  MPI_Recv(b, n, MPI_DOUBLE, MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &status);
  check_status("Recv", &status, left, 1, count);
  check("Recv", b, count, left, 1);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  fill(a, 2);
  MPI_Sendrecv(a, count, MPI_DOUBLE, right, 2, b, n, MPI_DOUBLE, left, 2, comm, &status);
  check_status("Sendrecv", &status, left, 2, count);
  check("Sendrecv", b, count, left, 2);
  fill(b, 3);
  MPI_Sendrecv_replace(b, count, MPI_DOUBLE, right, 3, left, MPI_ANY_TAG, comm, &status);
  check_status("Sendrecv_replace", &status, left, 3, count);
  check("Sendrecv_replace", b, count, left, 3);
  for (int turn = 0; turn < 2; turn++) {
    fill(a, 4);
    if (rank % 2 == turn && right != rank) MPI_Send(a, count, MPI_DOUBLE, right, 4, comm);
    else if (left % 2 == turn) {
      MPI_Recv(b, count, MPI_DOUBLE, left, 4, comm, MPI_STATUS_IGNORE);
      check("Send", b, count, left, 4);
    }
    MPI_Barrier(comm);
  }
}

static void probed(MPI_Comm comm, int count) {
  MPI_Request request, arriving;
  MPI_Message message;
  int found = 0;
  fill(a, 5);
  MPI_Isend(a, count, MPI_DOUBLE, right, 5, comm, &request);
  MPI_Probe(MPI_ANY_SOURCE, 5, comm, &status);
  check_status("Probe", &status, left, 5, count);
  while (!found) MPI_Iprobe(left, MPI_ANY_TAG, comm, &found, &status);
  check_status("Iprobe", &status, left, 5, count);
  MPI_Recv(b, count, MPI_DOUBLE, status.MPI_SOURCE, status.MPI_TAG, comm, MPI_STATUS_IGNORE);
  check("Probe", b, count, left, 5);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  fill(a, 6);
  MPI_Isend(a, count, MPI_DOUBLE, right, 6, comm, &request);
  MPI_Mprobe(left, 6, comm, &message, &status);
  check_status("Mprobe", &status, left, 6, count);
  MPI_Mrecv(b, count, MPI_DOUBLE, &message, &status);
  if (message != MPI_MESSAGE_NULL) wrong++;
  check_status("Mrecv", &status, left, 6, count);
  check("Mrecv", b, count, left, 6);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  fill(a, 7);
  MPI_Issend(a, count, MPI_DOUBLE, right, 7, comm, &request);
  for (found = 0; !found;) MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &found, &message, MPI_STATUS_IGNORE);
  MPI_Imrecv(b, count, MPI_DOUBLE, &message, &arriving);
  MPI_Wait(&arriving, &status);
  check_status("Imrecv", &status, left, 7, count);
  check("Imrecv", b, count, left, 7);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
}

/* Large and small messages alternate under one tag, and are received in the order in which they were sent. */
static void in_order(MPI_Comm comm) {
  MPI_Request requests[8];
  MPI_Status statuses[8];
  for (int k = 0; k < 4; k++) MPI_Irecv(b + k * n, n, MPI_DOUBLE, MPI_ANY_SOURCE, 8, comm, requests + k);
  for (int k = 0; k < 4; k++) {
    fill(a + k * n, k);
    MPI_Isend(a + k * n, k % 2 ? 5 : n, MPI_DOUBLE, right, 8, comm, requests + 4 + k);
  }
  MPI_Waitall(8, requests, statuses);
  for (int k = 0; k < 4; k++) {
    check_status("in order", statuses + k, left, 8, k % 2 ? 5 : n);
    check("in order", b + k * n, k % 2 ? 5 : n, left, k);
  }
}

static void columns(MPI_Comm comm) {
  MPI_Datatype column;
  MPI_Request request;
  MPI_Type_vector(n, 1, 2, MPI_DOUBLE, &column);
  MPI_Type_commit(&column);
  for (int i = 0; i < n; i++) a[2 * i] = value(rank, 9, i), a[2 * i + 1] = -1;
  MPI_Isend(a, 1, column, right, 9, comm, &request);
  MPI_Recv(b, n, MPI_DOUBLE, left, 9, comm, &status);
  check("from a column", b, n, left, 9);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  fill(a, 9);
  MPI_Isend(a, n, MPI_DOUBLE, right, 9, comm, &request);
  MPI_Recv(b, 1, column, left, 9, comm, &status);
  check_status("into a column", &status, left, 9, n);
  for (int i = 0; i < n; i++) b[n + i] = b[2 * i];
  check("into a column", b + n, n / 2, left, 9); /* the others were overwritten */
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  /* A datatype whose bytes are before the buffer's address. */
  int block = n, before = -n;
  MPI_Datatype backwards;
  MPI_Type_indexed(1, &block, &before, MPI_DOUBLE, &backwards);
  MPI_Type_commit(&backwards);
  fill(a, 9);
  MPI_Isend(a + n, 1, backwards, right, 9, comm, &request);
  MPI_Recv(b + n, 1, backwards, left, 9, comm, &status);
  check("backwards", b, n, left, 9);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  MPI_Type_free(&backwards);
  MPI_Type_free(&column);
}

static void persistent(MPI_Comm comm) {
  MPI_Request requests[4], all[4], extra;
  MPI_Status statuses[4];
  int index, flag, done;
  for (int k = 0; k < 2; k++) {
    MPI_Recv_init(b + k * n, n, MPI_DOUBLE, MPI_ANY_SOURCE, 10 + k, comm, requests + k);
    MPI_Send_init(a + k * n, k ? 3 : n, MPI_DOUBLE, right, 10 + k, comm, requests + 2 + k);
  }
  memcpy(all, requests, sizeof all);
  MPI_Wait(requests, &status); /* inactive: returns at once */
  for (int turn = 0; turn < 3; turn++) {
    for (int k = 0; k < 2; k++) fill(a + k * n, turn + k);
    MPI_Startall(3, requests);
    MPI_Start(requests + 3);
    if (turn == 0) MPI_Waitall(4, requests, statuses);
    for (done = 0; turn == 1 && done < 4; done++) {
      MPI_Waitany(4, requests, &index, &status);
      if (index >= 0 && index < 4) statuses[index] = status;
      else wrong++;
    }
    for (done = 0; turn == 2 && done < 4;) {
      MPI_Request_get_status(requests[done], &flag, statuses + done);
      if (flag) MPI_Wait(requests + done++, MPI_STATUS_IGNORE);
    }
    if (memcmp(all, requests, sizeof all)) wrong++;
    for (int k = 0; k < 2; k++) {
      check_status("Recv_init", statuses + k, left, 10 + k, k ? 3 : n);
      check("Recv_init", b + k * n, k ? 3 : n, left, turn + k);
    }
  }
  for (int k = 0; k < 4; k++) MPI_Request_free(requests + k);
  MPI_Irecv(b, n, MPI_DOUBLE, left, 12, comm, &extra);
  MPI_Cancel(&extra);
  MPI_Wait(&extra, &status);
  MPI_Test_cancelled(&status, &flag);
  if (!flag) wrong++;
}

int main(int argc, char** argv) {
  int total;
  n = argc > 1 ? atoi(argv[1]) : 40000;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  left = (rank + size - 1) % size, right = (rank + 1) % size;
  a = calloc(4 * n, sizeof *a), b = calloc(4 * n, sizeof *b);
  MPI_Comm comms[3] = {MPI_COMM_WORLD};
  MPI_Request made;
  MPI_Comm_dup(MPI_COMM_WORLD, comms + 1);
  MPI_Comm_idup(MPI_COMM_WORLD, comms + 2, &made);
  MPI_Wait(&made, MPI_STATUS_IGNORE);
  for (int k = 0; k < 3; k++) {
    for (int count = 3; count <= n; count += n - 3) {
      blocking(comms[k], count);
      probed(comms[k], count);
    }
    in_order(comms[k]);
    columns(comms[k]);
    persistent(comms[k]);
  }
  MPI_Comm_free(comms + 2);
  MPI_Comm_free(comms + 1);
  MPI_Allreduce(&wrong, &total, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) printf("%d wrong values on %d ranks\n", total, size);
  MPI_Finalize();
  return total != 0;
}
