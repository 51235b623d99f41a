/* Makes calls between two ranks; the other rank may be a Python program that makes the same calls. Rank 0 prints its
 * first argument, and whether values arrived as sent. It then runs its other arguments as a command: a separate job. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define N (1 << 17)
static double x[N], y[N];
extern char** environ;

static int is_of_launcher(const char* variable) {
  const char* const marks[] = {"PMI", "MPI_LOCAL", "HYDI", "OMPI_", "OPAL_", "ORTE_"};
  for (int i = 0; i < 6; i++)
    if (!strncmp(variable, marks[i], strlen(marks[i]))) return 1;
  return 0;
}

/* Runs a command without the variables of a rank, by which a launcher would take itself for a rank. */
static void run(char** command) {
  int n = 0;
  if (fork()) {
    wait(NULL);
    return;
  }
  for (char** one = environ; *one; one++)
    if (!is_of_launcher(*one)) environ[n++] = *one;
  environ[n] = NULL;
  execvp(command[0], command);
  _exit(1);
}

static int wrong(double factor) {
  int found = 0;
  for (int i = 0; i < N; i++) found += y[i] != factor / (i + 3);
  return found;
}

int main(int argc, char** argv) {
  int rank, size;
  MPI_Request request;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  int left = (rank + size - 1) % size, right = (rank + 1) % size, found = 0;
  for (int i = 0; i < N; i++) x[i] = y[i] = 1.0 / (i + 3);
  MPI_Bcast(y, N, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  found += wrong(1);
  MPI_Allreduce(x, y, N, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  found += wrong(size);
  MPI_Iallreduce(x, y, N, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD, &request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  found += wrong(size);
  MPI_Sendrecv(x, N, MPI_DOUBLE, right, 0, y, N, MPI_DOUBLE, left, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  found += wrong(1);
  if (rank == 0) {
    printf("%s on %d: %s\n", argv[1], size, found ? "lossy" : "exact");
    fflush(stdout);
    if (argc > 2) run(argv + 2);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  return MPI_Finalize();
}
