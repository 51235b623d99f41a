"""The transposes of a solver: derivatives of a field in slabs, by FFTs and Alltoall.

A field of n x n x n points is cut into slabs along x, one for each rank. Derivatives along y and z are local.
The derivative along x needs all of x on one rank, so Alltoall transposes to slabs along y, and back.

mpiexec -n 4 python transposes.py [CODEC]        # lossless by default; zfp:rate=16, auto, ...
"""

import sys

import numpy as np
from mpi4py import MPI

import compcoll


def slabs_of_y(comm, field):
    """Turn slabs along x, (n / size, n, n), into slabs along y, (n / size, n, n) with y first."""
    part, n, _ = field.shape
    send = np.ascontiguousarray(field.reshape(part, comm.size, part, n).swapaxes(0, 1))
    recv = np.empty_like(send)  # recv[p]: the points of rank p's x and of this rank's y
    comm.Alltoall(compcoll.shaped(send), compcoll.shaped(recv))
    return recv.reshape(n, part, n).swapaxes(0, 1)


def derivative(field, axis):
    """Differentiate a field that is periodic over 2 pi along an axis."""
    n = field.shape[axis]
    shape = [1] * field.ndim
    shape[axis] = n // 2 + 1
    waves = 1j * np.arange(n // 2 + 1).reshape(shape)
    return np.fft.irfft(waves * np.fft.rfft(field, axis=axis), n, axis=axis)


def main(codec="lossless", n=64):
    comm = compcoll.Comm(MPI.COMM_WORLD, codec=codec)
    if n % comm.size:
        raise SystemExit(f"{n} points cannot be cut into {comm.size} equal slabs")
    x, y, z = np.meshgrid(*3 * [np.arange(n) * 2 * np.pi / n], indexing="ij")
    part = slice(comm.rank * n // comm.size, (comm.rank + 1) * n // comm.size)
    x, y, z = x[part], y[part], z[part]
    u, v, w = np.cos(x) * np.sin(y) * np.sin(z), np.sin(x) * np.cos(y) * np.sin(z), np.cos(3 * x) * np.sin(y)

    # The slabs along y have x as their second axis, and the transpose is its own inverse.
    u_x = slabs_of_y(comm, derivative(slabs_of_y(comm, u), axis=1))
    bound = comm.report.error_bound
    divergence = u_x + derivative(v, axis=1) + derivative(w, axis=2)
    exact = -2 * np.sin(x) * np.sin(y) * np.sin(z)
    error = comm.allreduce(np.abs(divergence - exact).max(), op=MPI.MAX)
    if comm.rank == 0:
        print(f"divergence of {n}^3 points with {codec}: largest error {error:.1e}")
        print(f"bound of the last transpose {bound:.1e}, accelerated calls {comm.calls_accelerated}")
    return error


if __name__ == "__main__":
    main(*sys.argv[1:])
