// The heat equation in a plate by alternating directions, with a transpose by MPI_Alltoall between them.
//
// Each rank has n / size rows of n values. A step solves tridiagonal systems along the rows, transposes the
// plate, does the same along the columns, and transposes it back. The program compares its result with the
// exact solution of the scheme, and that with the exact solution of the equation. It does not use compcoll
// itself.
//
// mpicxx -O3 adi.cpp -o adi
// mpiexec -n 2 ./adi                                  # or: ./adi ROWS STEPS
// mpiexec -n 2 compcoll run --codec lossless ./adi

#include <mpi.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

using Values = std::vector<double>;

const double pi = std::acos(-1.0), end_of_time = 0.004;
const int waves[2] = {3, 2};

struct Plate {
  int n, size, rank, part;
  Values rows, send, recv, pivots;

  Plate(int n, double diffusion) : n(n), pivots(n) {
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (n < size || n % size) MPI_Abort(MPI_COMM_WORLD, 2);
    part = n / size;
    rows.resize(size_t(part) * n);
    send.resize(rows.size());
    recv.resize(rows.size());
    for (int j = 0; j < n; j++)
      pivots[j] = 1 / (1 + 2 * diffusion - (j ? diffusion * diffusion * pivots[j - 1] : 0));
    for (int i = 0; i < part; i++)
      for (int j = 0; j < n; j++) rows[size_t(i) * n + j] = initial(i, j);
  }

  double initial(int i, int j) const {
    double h = pi / (n + 1);
    return std::sin(waves[0] * h * (rank * part + i + 1)) * std::sin(waves[1] * h * (j + 1));
  }

  // Solves (1 + 2 d) x[j] - d x[j - 1] - d x[j + 1] = row[j] along each row.
  void solve(double diffusion) {
    for (int i = 0; i < part; i++) {
      double* row = &rows[size_t(i) * n];
      row[0] *= pivots[0];
      for (int j = 1; j < n; j++) row[j] = (row[j] + diffusion * row[j - 1]) * pivots[j];
      for (int j = n - 2; j >= 0; j--) row[j] += diffusion * pivots[j] * row[j + 1];
    }
  }

  // Block `peer` of the message has the columns that are the rows of rank `peer` afterwards.
  void transpose() {
    size_t block = size_t(part) * part;
    for (int peer = 0; peer < size; peer++)
      for (int i = 0; i < part; i++)
        std::copy_n(&rows[size_t(i) * n + peer * part], part, &send[peer * block + size_t(i) * part]);
    MPI_Alltoall(send.data(), int(block), MPI_DOUBLE, recv.data(), int(block), MPI_DOUBLE, MPI_COMM_WORLD);
    for (int peer = 0; peer < size; peer++)
      for (int j = 0; j < part; j++)
        for (int i = 0; i < part; i++)
          rows[size_t(j) * n + peer * part + i] = recv[peer * block + size_t(i) * part + j];
  }
};

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const int n = argc > 1 ? std::atoi(argv[1]) : 500, steps = argc > 2 ? std::atoi(argv[2]) : 60;
  const double dt = end_of_time / steps, diffusion = dt * (n + 1.0) * (n + 1.0);
  Plate plate(n, diffusion);

  double start = MPI_Wtime();
  for (int step = 0; step < steps; step++) {
    for (int direction = 0; direction < 2; direction++) {
      plate.solve(diffusion);
      plate.transpose();
    }
  }
  double seconds = MPI_Wtime() - start;

  double scheme = 1, equation = 1, energy = 0, total, error = 0, largest;
  for (int wave : waves) {
    scheme *= std::pow(1 + 2 * diffusion * (1 - std::cos(wave * pi / (n + 1))), -steps);
    equation *= std::exp(-end_of_time * wave * wave * pi * pi);
  }
  for (int i = 0; i < plate.part; i++)
    for (int j = 0; j < n; j++) {
      double value = plate.rows[size_t(i) * n + j];
      energy += value * value;
      error = std::max(error, std::abs(value - scheme * plate.initial(i, j)));
    }
  MPI_Reduce(&energy, &total, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
  MPI_Reduce(&error, &largest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  if (plate.rank == 0) {
    std::printf("adi: %d ranks, %d steps of %d x %d\n", plate.size, steps, n, n);
    std::printf("energy %.16e, error of rounding and codec %.1e, of the scheme %.1e\n", total, largest,
                std::abs(scheme - equation));
    std::printf("seconds %.3f\n", seconds);
  }
  return MPI_Finalize();
}
