"""mpi4py-fft: transforms of slabs and pencils, real and complex, forward and backward."""

import numpy as np
from mpi4py import MPI
from mpi4py_fft import PFFT, newDistArray
from results import Results

SHAPE = (64, 60, 56)
#: Axes that ranks divide: a grid of one axis makes slabs, and one of two axes makes pencils.
GRIDS = {"slab": (-1,), "pencil": (-1, -1)}
#: Plans that do not depend on measurements, so that every run rounds alike.
PLANNING = "FFTW_ESTIMATE"


def field(part, shape) -> np.ndarray:
    """This rank's part of a smooth field that is equal on all ranks."""
    x, y, z = np.meshgrid(*(np.arange(n) / n for n in shape), indexing="ij", sparse=True)
    return (np.sin(6 * x + 2 * y) * np.cos(9 * z) + np.exp(-20 * (x - y) ** 2))[part]


def main() -> None:
    with Results() as results:
        for grid, axes in GRIDS.items():
            for dtype in (np.float64, np.float32, np.complex128, np.complex64):
                name = f"{grid} {np.dtype(dtype).name}"
                fft = PFFT(MPI.COMM_WORLD, SHAPE, dtype=dtype, grid=axes, planner_effort=PLANNING)
                u = newDistArray(fft, False)
                u[:] = field(fft.local_slice(False), SHAPE)
                before = u.copy()
                u_hat = fft.forward(u, newDistArray(fft, True))
                results.keep(f"{name} forward", u_hat)
                back = fft.backward(u_hat, newDistArray(fft, False))
                results.keep(f"{name} backward", back)
                assert np.allclose(back, before, atol=1e-5), name
                fft.destroy()


if __name__ == "__main__":
    main()
