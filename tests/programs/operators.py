"""pylops-mpi: derivatives across ranks, blocks on the diagonal, least squares, Fourier transforms."""

import numpy as np
import pylops
import pylops_mpi
from mpi4py import MPI
from results import Results

SHAPE = (192, 240)


def scattered(values: np.ndarray) -> pylops_mpi.DistributedArray:
    """Distributed array of which each rank has its part."""
    return pylops_mpi.DistributedArray.to_dist(values)


def main() -> None:
    rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    rng = np.random.default_rng(1)
    x = np.cumsum(rng.normal(size=SHAPE), axis=0).ravel()
    with Results() as results:
        derivatives = {
            "first derivative": pylops_mpi.MPIFirstDerivative(SHAPE),
            "second derivative": pylops_mpi.MPISecondDerivative(SHAPE),
            "laplacian": pylops_mpi.MPILaplacian(SHAPE, axes=(0, 1)),
        }
        for name, operator in derivatives.items():
            y = operator @ scattered(x)
            results.keep(name, y.local_array)
            results.keep(f"{name}, whole", y.asarray())
            results.keep(f"{name}, transposed", (operator.H @ y).local_array)
        block = np.random.default_rng(rank).normal(size=(300, 200))
        diagonal = pylops_mpi.MPIBlockDiag([pylops.MatrixMult(block)])
        truth = scattered(rng.normal(size=200 * size))
        start = pylops_mpi.DistributedArray(200 * size)
        start[:] = 0
        found = pylops_mpi.cgls(diagonal, diagonal @ truth, x0=start, niter=60, tol=1e-12)[0]
        assert np.allclose(found.asarray(), truth.asarray(), atol=1e-4)
        results.keep("least squares", found.local_array, sums=True)
        stack = pylops_mpi.MPIVStack([pylops.MatrixMult(block)])
        model = pylops_mpi.DistributedArray(200, partition=pylops_mpi.Partition.BROADCAST)
        model[:] = rng.normal(size=200)
        results.keep("stack, transposed", (stack.H @ (stack @ model)).local_array, sums=True)


if __name__ == "__main__":
    main()
