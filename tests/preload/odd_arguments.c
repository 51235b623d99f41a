/* Legal calls whose arguments differ between ranks where MPI allows it, and calls that MPI refuses on one rank, before
   correct ones. Prints one line on rank 0, and ends with the number of wrong results. With "truncated", also receives
   less than was sent, which Open MPI 4 does not survive. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 200000, TAG = 3 };
static int wrong = 0, rank, size;
static double *a, *b;

static double value(int from, int i) { return 1000.0 * from + i % 97; }

static void expect(int is_right, const char* what, const char* form) {
  if (!is_right && wrong++ < 5) fprintf(stderr, "rank %d: %s, %s\n", rank, what, form);
}

static int are_values(const double* got, int n, int from) {
  for (int i = 0; i < n; i++)
    if (got[i] != value(from, i)) return 0;
  return 1;
}

static void fill(void) {
  for (int i = 0; i < N * size; i++) a[i] = value(rank, i % N), b[i] = -1;
}

static int class_of(int code) {
  int of;
  MPI_Error_class(code, &of);
  return of;
}

/* Completes a nonblocking call; `starts`: a persistent one, which is started first. */
static void end(MPI_Request* request, int starts) {
  if (starts) MPI_Start(request);
  MPI_Wait(request, MPI_STATUS_IGNORE);
  if (starts) MPI_Request_free(request);
}

#if MPI_VERSION >= 4
enum { FORMS = 3 };
#define PERSISTENT(name, ...) MPI_##name##_init(__VA_ARGS__, MPI_INFO_NULL, &request)
#else
enum { FORMS = 2 };
#define PERSISTENT(name, ...) MPI_ERR_OTHER
#endif
static const char* forms[] = {"blocking", "nonblocking", "persistent"};

/* Error code of a call in the current form. */
#define CALL(name, iname, ...)                                             \
  (form == 0   ? MPI_##name(__VA_ARGS__)                                   \
   : form == 1 ? MPI_I##iname(__VA_ARGS__, &request)                       \
               : PERSISTENT(name, __VA_ARGS__))
#define DO(name, iname, ...)                                               \
  do {                                                                     \
    expect(!CALL(name, iname, __VA_ARGS__), #name, forms[form]);           \
    if (form) end(&request, form == 2);                                    \
  } while (0)

/* Only one rank sends or receives data; the others pass null buffers. */
static void contributions(MPI_Comm comm, int form) {
  MPI_Request request;
  int counts[64] = {0}, displs[64] = {0}, none[64] = {0}, root = size - 1, mine = rank == 0;
  MPI_Datatype bytes[64], doubles[64];
  void* sent = mine ? a : NULL;
  int n = mine ? N : 0;
  MPI_Datatype type = mine ? MPI_DOUBLE : MPI_BYTE;
  counts[0] = N;
  for (int p = 0; p < size; p++) bytes[p] = MPI_BYTE, doubles[p] = MPI_DOUBLE;
  fill();
  DO(Allgatherv, allgatherv, sent, n, type, b, counts, displs, MPI_DOUBLE, comm);
  expect(are_values(b, N, 0), "Allgatherv", forms[form]);
  fill();
  DO(Gatherv, gatherv, sent, n, type, b, counts, displs, MPI_DOUBLE, root, comm);
  if (rank == root) expect(are_values(b, N, 0), "Gatherv", forms[form]);
  fill();
  DO(Scatterv, scatterv, a, counts, displs, MPI_DOUBLE, mine ? b : NULL, n, type, root, comm);
  if (mine) expect(are_values(b, N, root), "Scatterv", forms[form]);
  /* From rank 0 to the last rank. */
  int out[64] = {0}, in[64] = {0};
  if (mine) out[root] = N;
  if (rank == root) in[0] = N;
  fill();
  DO(Alltoallv, alltoallv, sent, out, displs, type, rank == root ? b : NULL, in, displs,
     rank == root ? MPI_DOUBLE : MPI_CHAR, comm);
  if (rank == root) expect(are_values(b, N, 0), "Alltoallv", forms[form]);
  fill();
  DO(Alltoallw, alltoallw, sent, out, displs, mine ? doubles : bytes, rank == root ? b : NULL, in, displs,
     rank == root ? doubles : bytes, comm);
  if (rank == root) expect(are_values(b, N, 0), "Alltoallw", forms[form]);
}

/* A call that MPI refuses on the last rank, then a correct one on all ranks. */
static void refusals(MPI_Comm comm, int form) {
  MPI_Request request;
  int counts[64], displs[64], at[64], n = N / size, last = rank == size - 1;
  MPI_Datatype types[64], nulls[64];
  for (int p = 0; p < size; p++) {
    counts[p] = n, displs[p] = p * n, at[p] = displs[p] * (int)sizeof(double);
    types[p] = MPI_DOUBLE, nulls[p] = MPI_DATATYPE_NULL;
  }
#define REFUSED(name, iname, ...)                                                                     \
  if (last) expect(CALL(name, iname, __VA_ARGS__) != MPI_SUCCESS, #name " is not refused", forms[form])
  fill();
  for (int i = 0; i < 3; i++)
    REFUSED(Alltoallv, alltoallv, a, counts, displs, MPI_DATATYPE_NULL, b, counts, displs, MPI_DOUBLE, comm);
  DO(Alltoallv, alltoallv, a, counts, displs, MPI_DOUBLE, b, counts, displs, MPI_DOUBLE, comm);
  for (int p = 0; p < size; p++) expect(b[p * n] == value(p, rank * n), "Alltoallv", forms[form]);
  fill();
  REFUSED(Alltoallw, alltoallw, a, counts, at, nulls, b, counts, at, types, comm);
  DO(Alltoallw, alltoallw, a, counts, at, types, b, counts, at, types, comm);
  for (int p = 0; p < size; p++) expect(b[p * n] == value(p, rank * n), "Alltoallw", forms[form]);
  fill();
  REFUSED(Gatherv, gatherv, a, n, MPI_DATATYPE_NULL, b, counts, displs, MPI_DOUBLE, 0, comm);
  DO(Gatherv, gatherv, a, n, MPI_DOUBLE, b, counts, displs, MPI_DOUBLE, 0, comm);
  for (int p = 0; rank == 0 && p < size; p++) expect(are_values(b + p * n, n, p), "Gatherv", forms[form]);
  fill();
  REFUSED(Scatterv, scatterv, a, counts, displs, MPI_DOUBLE, b, n, MPI_DATATYPE_NULL, 0, comm);
  DO(Scatterv, scatterv, a, counts, displs, MPI_DOUBLE, b, n, MPI_DOUBLE, 0, comm);
  expect(b[0] == value(0, rank * n), "Scatterv", forms[form]);
}

enum Receive { RECV, IRECV, TESTED, WAITALL, WAITANY, WAITSOME, RECV_INIT, SENDRECV, RECEIVES };
static const char* receives[] = {"Recv", "Irecv", "Test", "Waitall", "Waitany", "Waitsome", "Recv_init", "Sendrecv"};

/* Receives from rank 0; returns the error code. */
static int receive(enum Receive how, void* into, int n, MPI_Datatype type, MPI_Comm comm) {
  MPI_Request both[2];
  MPI_Status statuses[2];
  int flag = 0, index, n_done, indices[2], code;
  if (how == RECV) return MPI_Recv(into, n, type, 0, TAG, comm, MPI_STATUS_IGNORE);
  if (how == SENDRECV)
    return MPI_Sendrecv(NULL, 0, MPI_BYTE, MPI_PROC_NULL, TAG, into, n, type, 0, TAG, comm, MPI_STATUS_IGNORE);
  both[1] = MPI_REQUEST_NULL;
  if (how == RECV_INIT) {
    MPI_Recv_init(into, n, type, 0, TAG, comm, both);
    MPI_Start(both);
    code = MPI_Wait(both, MPI_STATUS_IGNORE);
    MPI_Request_free(both);
    return code;
  }
  MPI_Irecv(into, n, type, 0, TAG, comm, both);
  if (how == IRECV) return MPI_Wait(both, MPI_STATUS_IGNORE);
  if (how == WAITANY) return MPI_Waitany(2, both, &index, MPI_STATUS_IGNORE);
  if (how == TESTED) {
    do code = MPI_Test(both, &flag, MPI_STATUS_IGNORE);
    while (!flag && !code);
    return code;
  }
  code = how == WAITALL ? MPI_Waitall(2, both, statuses) : MPI_Waitsome(2, both, &n_done, indices, statuses);
  return class_of(code) == MPI_ERR_IN_STATUS ? statuses[0].MPI_ERROR : code;
}

/* Doubles are received into a datatype of doubles followed by integers. */
static void parts(MPI_Comm comm, enum Receive how, int n) {
  int lengths[] = {n, 10};
  MPI_Aint at[] = {0, n * (MPI_Aint)sizeof(double)};
  MPI_Datatype types[] = {MPI_DOUBLE, MPI_INT}, made;
  MPI_Type_create_struct(2, lengths, at, types, &made);
  MPI_Type_commit(&made);
  fill();
  if (rank == 0) MPI_Send(a, n, MPI_DOUBLE, 1, TAG, comm);
  if (rank == 1) {
    expect(!receive(how, b, 1, made, comm), "parts", receives[how]);
    expect(are_values(b, n, 0) && b[n] == -1, "parts", receives[how]);
  }
  MPI_Type_free(&made);
}

static void truncated(MPI_Comm comm, enum Receive how, int room, int n) {
  fill();
  if (rank == 0)
    for (int i = 0; i < 2; i++) MPI_Send(a, n, MPI_DOUBLE, 1, TAG, comm);
  if (rank == 1) {
    expect(class_of(receive(how, b, room, MPI_DOUBLE, comm)) == MPI_ERR_TRUNCATE, "truncation", receives[how]);
    expect(!receive(how, b, n, MPI_DOUBLE, comm) && are_values(b, n, 0), "after truncation", receives[how]);
  }
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm comm;
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  a = malloc(sizeof(double) * N * size), b = malloc(sizeof(double) * N * size);
  for (int form = 0; form < FORMS; form++) contributions(comm, form), refusals(comm, form);
  for (int how = 0; how < RECEIVES; how++) {
    for (int n = 100; n < N; n = n * 13 + 7) parts(comm, how, n);
    for (int room = 128; argc > 1 && room < 3000; room = room * 8 + 3)
      for (int n = room + 1; n <= N; n = n * 9 + 4000) truncated(comm, how, room, n);
  }
  int all = 0;
  MPI_Reduce(&wrong, &all, 1, MPI_INT, MPI_SUM, 0, comm);
  if (rank == 0) printf("%d wrong on %d ranks\n", all, size);
  MPI_Comm_free(&comm);
  MPI_Finalize();
  return wrong;
}
