/* Transforms a cube of 128^3 complex values with FFTW's own MPI, forward and backward, ten times.
 *
 *     mpicc fftw.c -o fftw -lfftw3_mpi -lfftw3 -lm
 */
#include <fftw3-mpi.h>
#include <math.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    const ptrdiff_t n = 128;
    ptrdiff_t rows, first, i, values;
    int rank, turn;
    double energy = 0, largest = 0, sums[1], worst;

    MPI_Init(&argc, &argv);
    fftw_mpi_init();
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    fftw_complex *data =
        fftw_alloc_complex(fftw_mpi_local_size_3d(n, n, n, MPI_COMM_WORLD, &rows, &first));
    fftw_plan there =
        fftw_mpi_plan_dft_3d(n, n, n, data, data, MPI_COMM_WORLD, FFTW_FORWARD, FFTW_ESTIMATE);
    fftw_plan back =
        fftw_mpi_plan_dft_3d(n, n, n, data, data, MPI_COMM_WORLD, FFTW_BACKWARD, FFTW_ESTIMATE);
    values = rows * n * n;
#define FIELD(i) (sin(1e-3 * ((i) + first * n * n)) + 0.3 * cos(0.7 * ((i) % n)))
    for (i = 0; i < values; i++) {
        data[i][0] = FIELD(i);
        data[i][1] = 0;
    }
    for (turn = 0; turn < 10; turn++) {
        fftw_execute(there);
        energy = 0;
        for (i = 0; i < values; i++)
            energy += data[i][0] * data[i][0] + data[i][1] * data[i][1];
        fftw_execute(back);
        for (i = 0; i < values; i++) {
            data[i][0] /= (double)n * n * n;
            data[i][1] /= (double)n * n * n;
        }
    }
    for (i = 0; i < values; i++)
        largest = fmax(largest, fabs(data[i][0] - FIELD(i)));
    MPI_Allreduce(&energy, sums, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(&largest, &worst, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (rank == 0)
        printf("energy %.15e\nlargest error %.3e\n", sums[0], worst);
    fftw_destroy_plan(there);
    fftw_destroy_plan(back);
    fftw_free(data);
    MPI_Finalize();
    return 0;
}
