/* Gives communicators attributes, and prints how often the callbacks have run after calls that make or free
   communicators. */
#include <mpi.h>
#include <stdio.h>

enum { N = 1 << 17, TWINS = 17 };  /* more than share a private communicator */
static double values[N], others[N];
static int copied, deleted;

static int copy(MPI_Comm comm, int key, void* extra, void* value, void* made, int* flag) {
  copied++;
  *(void**)made = value;
  return *flag = 1, MPI_SUCCESS;
}

static int delete(MPI_Comm comm, int key, void* value, void* extra) {
  deleted++;
  return MPI_SUCCESS;
}

static void tell(const char* after, int rank) {
  if (rank == 0) printf("%s: %d copied, %d deleted\n", after, copied, deleted);
}

int main(int argc, char** argv) {
  int rank, key, value = 7;
  MPI_Comm twins[TWINS], part;
  MPI_Status status;
  MPI_Request request;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_create_keyval(copy, delete, &key, NULL);
  MPI_Comm_set_attr(MPI_COMM_WORLD, key, &value);
  MPI_Comm_set_attr(MPI_COMM_SELF, key, &value);
  for (int i = 0; i < TWINS; i++) MPI_Comm_dup(MPI_COMM_WORLD, twins + i);
  tell("dup", rank);
  MPI_Comm_split(*twins, 0, 0, &part);
  tell("split", rank);
  MPI_Send_init(values, N, MPI_DOUBLE, 1 - rank, 0, part, &request);
  MPI_Start(&request);
  MPI_Recv(others, N, MPI_DOUBLE, 1 - rank, 0, part, &status);
  MPI_Wait(&request, &status);
  MPI_Request_free(&request);
  tell("message", rank);
  MPI_Comm_free(&part);
  tell("free a part", rank);
  for (int i = 0; i < TWINS; i++) MPI_Comm_free(twins + i);
  tell("free the twins", rank);
  MPI_Comm_delete_attr(MPI_COMM_WORLD, key);
  MPI_Comm_delete_attr(MPI_COMM_SELF, key);
  tell("end", rank);
  MPI_Finalize();
  return 0;
}
