"""Direct simulation of the Taylor-Green vortex: pseudo-spectral, over any mpi4py communicator."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from .slab_fft import SlabFFT

__all__ = ["TaylorGreen", "vortex"]


def vortex(x, y, z):
    """Initial velocity of Taylor and Green (1937), in the form of the usual test case."""
    return np.sin(x) * np.cos(y) * np.cos(z), -np.cos(x) * np.sin(y) * np.cos(z), 0.0


class TaylorGreen:
    """Incompressible Navier-Stokes equations in the periodic box [0, 2 pi)^3.

    Fourier-Galerkin in space, with the nonlinear term in rotational form, u x curl u, evaluated without
    aliasing by the 2/3 rule, so that it conserves energy; classical Runge-Kutta of order 4 in time. All
    quantities are nondimensional: lengths by the vortex size, velocities by its initial maximum.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        The number of ranks has to divide ``n``.
    n : int
        Points in each direction.
    viscosity : float
        Inverse of the Reynolds number.
    dt : float, optional
        Time step; by default 2 / n, well inside the stability limit for \\|u\\| about 1.
    dtype : dtype
        float32 or float64. The modes, which are communicated, are complex64 or complex128.
    initial : callable
        ``initial(x, y, z)`` gives three velocity components that broadcast against the grid.

    Attributes
    ----------
    time : float
        Nondimensional time reached.
    modes : ndarray
        Fourier coefficients of the velocity, shape (3, ky, kz, kx) of this rank.
    """

    def __init__(self, comm, n=64, viscosity=1 / 1600, dt=None, dtype=np.float64, initial=vortex):
        self.comm, self.viscosity = comm, viscosity
        self.dt = 2 / n if dt is None else dt
        self.time = 0.0
        self.fft = SlabFFT(comm, n, dtype)
        k = np.broadcast_arrays(self.fft.kx, self.fft.ky, self.fft.kz)
        self.k = np.stack(k)
        self.k2 = np.sum(self.k**2, axis=0)
        self._k_over_k2 = self.k / np.where(self.k2 > 0, self.k2, 1)
        self.modes = self._project(self.fft.forward(self._sample(initial)))

    def step(self) -> None:
        """Advance by ``dt``; collective, eight Alltoalls."""
        start, dt = self.modes, self.dt
        slope = self._slope(start)
        total = slope / 6
        for ahead, weight in ((dt / 2, 1 / 3), (dt / 2, 1 / 3), (dt, 1 / 6)):
            slope = self._slope(start + ahead * slope)
            total += weight * slope
        self.modes = start + dt * total
        self.time += dt

    def velocity(self) -> np.ndarray:
        """Velocity on this rank's points, shape (3, x, y, z); collective."""
        return self.fft.backward(self.modes)

    def energy(self) -> float:
        """Kinetic energy per unit volume; collective."""
        return self._sum(self._power()) / 2

    def dissipation(self) -> float:
        """Energy dissipated by viscosity, per unit volume and time; collective."""
        return self.viscosity * self._sum(self.k2 * self._power())

    def _sample(self, initial) -> np.ndarray:
        nx, n, _ = self.fft.shape
        axis = 2 * np.pi / n * np.arange(n)
        x = axis[self.comm.Get_rank() * nx :][:nx]
        values = initial(x[:, None, None], axis[:, None], axis)
        return np.stack([np.broadcast_to(v, self.fft.shape) for v in values]).astype(self.fft.dtype)

    def _slope(self, modes: np.ndarray) -> np.ndarray:
        """Time derivative of the modes: the projected u x curl u, and diffusion."""
        points = self.fft.backward(np.concatenate([modes, 1j * _cross(self.k, modes)]))
        slope = self._project(self.fft.forward(_cross(points[:3], points[3:])))
        slope -= self.viscosity * self.k2 * modes
        return slope

    def _project(self, modes: np.ndarray) -> np.ndarray:
        """Remove the gradient part, which the pressure balances, and zero the padding modes."""
        modes -= self._k_over_k2 * np.sum(self.k * modes, axis=0)
        modes *= self.fft.kept
        return modes

    def _power(self) -> np.ndarray:
        """Squared magnitude of each mode's velocity, doubled if its conjugate is not stored."""
        power = np.sum(np.abs(self.modes) ** 2, axis=0, dtype=np.float64)
        return np.where(self.fft.kz > 0, 2, 1) * power

    def _sum(self, values: np.ndarray) -> float:
        return self.comm.allreduce(float(np.sum(values)), op=MPI.SUM)


def _cross(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.stack([a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]])
