/* Each collective in each form on several communicators, with values that identify their source. Prints one
   line on rank 0, and ends with the number of wrong values. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int wrong = 0, rank, size, n;

static double value(int from, int to, int i) { return 1000.0 * from + 100.0 * to + i % 97; }

static void check(const char* what, const double* got, int count, int from, int to) {
  for (int i = 0; i < count; i++)
    if (got[i] != value(from, to, i)) {
      if (wrong++ < 5) fprintf(stderr, "rank %d: %s: [%d] is %g, not %g\n", rank, what, i, got[i], value(from, to, i));
    }
}

static void check_sum(const char* what, const double* got, int count, int to) {
  for (int i = 0; i < count; i++) {
    double sum = 0;
    for (int p = 0; p < size; p++) sum += value(p, to, i);
    if (got[i] != sum) {
      if (wrong++ < 5) fprintf(stderr, "rank %d: %s: [%d] is %g, not %g\n", rank, what, i, got[i], sum);
    }
  }
}

static void fill(double* at, int from, int to) {
  for (int i = 0; i < n; i++) at[i] = value(from, to, i);
}

static void fill_all(double* at) {
  for (int p = 0; p < size; p++) fill(at + (size_t)p * n, rank, p);
}

enum Form { BLOCKING, NONBLOCKING, PERSISTENT };

#if MPI_VERSION >= 4
#define PREPARED(name, iname, ...)                                  \
  do {                                                              \
    MPI_Request request, same;                                      \
    MPI_##name##_init(__VA_ARGS__, comm, MPI_INFO_NULL, &request);  \
    same = request;                                                 \
    MPI_Start(&request);                                            \
    MPI_Wait(&request, MPI_STATUS_IGNORE);                          \
    if (same != request) wrong++;                                   \
    MPI_Request_free(&request);                                     \
    if (MPI_REQUEST_NULL != request) wrong++;                       \
  } while (0)
#else
#define PREPARED NOW
#endif
#define NOW(name, iname, ...) MPI_##name(__VA_ARGS__, comm)

/* Nonblocking calls are waited for at once. */
#define DO(name, iname, ...)                        \
  do {                                              \
    if (form == NONBLOCKING) {                      \
      MPI_Request request;                          \
      MPI_I##iname(__VA_ARGS__, comm, &request);    \
      MPI_Wait(&request, MPI_STATUS_IGNORE);        \
    } else if (form == PERSISTENT)                  \
      PREPARED(name, iname, __VA_ARGS__);           \
    else                                            \
      NOW(name, iname, __VA_ARGS__);                \
    memset(a, 0, bytes);                            \
  } while (0)

static void all(MPI_Comm comm, enum Form form) {
  size_t bytes = sizeof(double) * n * size;
  double *a = malloc(bytes), *b = malloc(bytes);
  int counts[64], displs[64], root = size - 1, first = rank == root;
  for (int p = 0; p < size; p++) counts[p] = n, displs[p] = n * (size - 1 - p);

  fill_all(a);
  DO(Alltoall, alltoall, a, n, MPI_DOUBLE, b, n, MPI_DOUBLE);
  for (int p = 0; p < size; p++) check("Alltoall", b + (size_t)p * n, n, p, rank);

  fill_all(b);
  DO(Alltoall, alltoall, MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, b, n, MPI_DOUBLE);
  for (int p = 0; p < size; p++) check("Alltoall in place", b + (size_t)p * n, n, p, rank);

  for (int p = 0; p < size; p++) fill(a + displs[p], rank, p);
  DO(Alltoallv, alltoallv, a, counts, displs, MPI_DOUBLE, b, counts, displs, MPI_DOUBLE);
  for (int p = 0; p < size; p++) check("Alltoallv", b + displs[p], n, p, rank);

  MPI_Datatype types[64];
  int offsets[64];
  for (int p = 0; p < size; p++) types[p] = MPI_DOUBLE, offsets[p] = 8 * displs[p], fill(a + displs[p], rank, p);
  DO(Alltoallw, alltoallw, a, counts, offsets, types, b, counts, offsets, types);
  for (int p = 0; p < size; p++) check("Alltoallw", b + displs[p], n, p, rank);

  fill(a, rank, 0);
  memcpy(b, a, bytes / size);
  DO(Bcast, bcast, b, n, MPI_DOUBLE, root);
  check("Bcast", b, n, root, 0);

  fill(a, rank, 0);
  DO(Allreduce, allreduce, a, b, n, MPI_DOUBLE, MPI_SUM);
  check_sum("Allreduce", b, n, 0);
  fill(b, rank, 0);
  DO(Allreduce, allreduce, MPI_IN_PLACE, b, n, MPI_DOUBLE, MPI_SUM);
  check_sum("Allreduce in place", b, n, 0);
  fill(b, rank, 0);
  DO(Allreduce, allreduce, MPI_IN_PLACE, b, n, MPI_DOUBLE, MPI_MAX);
  check("Allreduce of maxima", b, n, root, 0);

  fill(a, rank, 0);
  DO(Allgather, allgather, a, n, MPI_DOUBLE, b, n, MPI_DOUBLE);
  for (int p = 0; p < size; p++) check("Allgather", b + (size_t)p * n, n, p, 0);
  memset(b, 0, bytes);
  fill(b + (size_t)rank * n, rank, 0);
  DO(Allgather, allgather, MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, b, n, MPI_DOUBLE);
  for (int p = 0; p < size; p++) check("Allgather in place", b + (size_t)p * n, n, p, 0);

  fill(a, rank, 0);
  DO(Allgatherv, allgatherv, a, n, MPI_DOUBLE, b, counts, displs, MPI_DOUBLE);
  for (int p = 0; p < size; p++) check("Allgatherv", b + displs[p], n, p, 0);

  fill(a, rank, 0);
  DO(Reduce, reduce, a, b, n, MPI_DOUBLE, MPI_SUM, root);
  if (first) check_sum("Reduce", b, n, 0);
  fill(b, rank, 0);
  DO(Reduce, reduce, first ? MPI_IN_PLACE : b, first ? b : NULL, n, MPI_DOUBLE, MPI_SUM, root);
  if (first) check_sum("Reduce in place", b, n, 0);

  fill_all(a);
  DO(Reduce_scatter, reduce_scatter, a, b, counts, MPI_DOUBLE, MPI_SUM);
  check_sum("Reduce_scatter", b, n, rank);
  fill_all(a);
  DO(Reduce_scatter_block, reduce_scatter_block, a, b, n, MPI_DOUBLE, MPI_SUM);
  check_sum("Reduce_scatter_block", b, n, rank);

  fill(a, rank, 0);
  DO(Gather, gather, a, n, MPI_DOUBLE, b, n, MPI_DOUBLE, root);
  for (int p = 0; first && p < size; p++) check("Gather", b + (size_t)p * n, n, p, 0);
  fill(first ? b + (size_t)rank * n : b, rank, 0);
  DO(Gather, gather, first ? MPI_IN_PLACE : b, n, MPI_DOUBLE, b, n, MPI_DOUBLE, root);
  for (int p = 0; first && p < size; p++) check("Gather in place", b + (size_t)p * n, n, p, 0);
  fill(a, rank, 0);
  DO(Gatherv, gatherv, a, n, MPI_DOUBLE, b, counts, displs, MPI_DOUBLE, root);
  for (int p = 0; first && p < size; p++) check("Gatherv", b + displs[p], n, p, 0);

  fill_all(a);
  DO(Scatter, scatter, a, n, MPI_DOUBLE, b, n, MPI_DOUBLE, root);
  check("Scatter", b, n, root, rank);
  fill_all(a);
  DO(Scatterv, scatterv, a, counts, displs, MPI_DOUBLE, b, n, MPI_DOUBLE, root);
  check("Scatterv", b, n, root, size - 1 - rank);
  free(a);
  free(b);
}

/* Columns of a matrix, sent as a derived datatype and received contiguously. */
static void columns(MPI_Comm comm) {
  double *a = malloc(sizeof(double) * 2 * n), *b = malloc(sizeof(double) * n);
  MPI_Datatype column;
  MPI_Type_vector(n, 1, 2, MPI_DOUBLE, &column);
  MPI_Type_commit(&column);
  for (int i = 0; i < n; i++) a[2 * i] = value(0, 0, i), a[2 * i + 1] = -1;
  if (rank == 0)
    MPI_Bcast(a, 1, column, 0, comm);
  else
    MPI_Bcast(b, n, MPI_DOUBLE, 0, comm);
  if (rank) check("Bcast of a column", b, n, 0, 0);
  MPI_Type_free(&column);
  free(a);
  free(b);
}

/* Counts of 64 bits. compcoll handles them in blocking and nonblocking calls. */
static void large(MPI_Comm comm) {
#if MPI_VERSION >= 4
  double *a = malloc(sizeof(double) * n * size), *b = malloc(sizeof(double) * n * size);
  MPI_Request request;
  fill_all(a);
  MPI_Alltoall_c(a, n, MPI_DOUBLE, b, n, MPI_DOUBLE, comm);
  for (int p = 0; p < size; p++) check("Alltoall_c", b + (size_t)p * n, n, p, rank);
  fill(a, rank, 0);
  MPI_Iallreduce_c(a, b, n, MPI_DOUBLE, MPI_SUM, comm, &request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  check_sum("Iallreduce_c", b, n, 0);
  free(a);
  free(b);
#endif
}

/* A large message between two ranks only, then a call of all ranks. */
static void uneven(MPI_Comm comm) {
  double *a = malloc(sizeof(double) * n * size), *b = malloc(sizeof(double) * n * size);
  int counts[64], displs[64];
  MPI_Request requests[2];
  for (int p = 0; p < size; p++) counts[p] = p + rank == 1 ? n : 1, displs[p] = p * n;
  fill_all(a);
  MPI_Ialltoallv(a, counts, displs, MPI_DOUBLE, b, counts, displs, MPI_DOUBLE, comm, requests);
  double *c = malloc(sizeof(double) * n), *d = malloc(sizeof(double) * n);
  fill(c, rank, 0);
  MPI_Iallreduce(c, d, n, MPI_DOUBLE, MPI_SUM, comm, requests + 1);
  MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
  for (int p = 0; p < size; p++) check("uneven Ialltoallv", b + displs[p], counts[p], p, rank);
  check_sum("Iallreduce behind it", d, n, 0);
  free(a), free(b), free(c), free(d);
}

/* Several calls in flight, on two communicators. */
static void several(MPI_Comm one, MPI_Comm other) {
  double *a = malloc(sizeof(double) * 4 * n), *b = malloc(sizeof(double) * 4 * n);
  MPI_Request requests[4];
  for (int k = 0; k < 4; k++) fill(a + k * n, rank, k);
  for (int k = 0; k < 4; k++)
    MPI_Iallreduce(a + k * n, b + k * n, n, MPI_DOUBLE, MPI_SUM, k % 2 ? one : other, requests + k);
  MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
  for (int k = 0; k < 4; k++) check_sum("four at once", b + k * n, n, k);
  free(a);
  free(b);
}

int main(int argc, char** argv) {
  int level, total;
  n = argc > 1 ? atoi(argv[1]) : 40000;
  MPI_Init(&argc, &argv);
  MPI_Query_thread(&level);
  MPI_Comm world = MPI_COMM_WORLD, twin, half;
  MPI_Comm_rank(world, &rank);
  MPI_Comm_size(world, &size);
  MPI_Comm_dup(world, &twin);
  all(world, BLOCKING);
  all(world, NONBLOCKING);
  all(twin, NONBLOCKING);
  all(twin, PERSISTENT);
  all(twin, BLOCKING);
  large(twin);
  uneven(twin);
  columns(twin);
  several(world, twin);
  MPI_Comm_free(&twin);
  MPI_Comm_dup(world, &twin);
  all(twin, BLOCKING);
  MPI_Comm_split(world, 0, -rank, &half);
  MPI_Comm_rank(half, &rank);
  all(half, BLOCKING);
  all(half, NONBLOCKING);
  MPI_Comm_free(&half);
  MPI_Comm_free(&twin);
  MPI_Comm_rank(world, &rank);
  MPI_Allreduce(&wrong, &total, 1, MPI_INT, MPI_SUM, world);
  if (rank == 0) printf("%d wrong values on %d ranks, thread level %d\n", total, size, level);
  MPI_Finalize();
  return total != 0;
}
