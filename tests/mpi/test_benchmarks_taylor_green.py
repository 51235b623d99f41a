"""Demo flow against NumPy's transform, exact solutions, its balance of energy, and a run on one rank."""

import numpy as np
import pytest
from mpi4py import MPI

from benchmarks.demo.slab_fft import SlabFFT
from benchmarks.demo.taylor_green import TaylorGreen

N = 12  # divisible by every number of ranks in use


def planar(x, y, z):
    """Velocity of the two-dimensional vortex: an exact solution, which decays as exp(-2 t viscosity)."""
    return np.sin(x) * np.cos(y), -np.cos(x) * np.sin(y), 0.0


def sheared(x, y, z):
    """Velocity of a flow without symmetry."""
    return np.sin(y + z), 0.5 * np.cos(x - 2 * z) + np.sin(z), np.cos(x + y) - np.sin(2 * x)


def rotated(x, y, z):
    return 0.0, *planar(y, z, x)[:2]


def evolve(comm, steps, **options):
    solver = TaylorGreen(comm, **{"n": N, **options})
    for _ in range(steps):
        solver.step()
    return solver


def slab(comm, n=N):
    return slice(comm.rank * n // comm.size, (comm.rank + 1) * n // comm.size)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-14), (np.float32, 2e-6)])
def test_transform_equals_numpys(comm, agree, dtype, tolerance):
    """The transform gives NumPy's modes, keeps each on one rank, and ``backward`` inverts it."""
    transform = SlabFFT(comm, N, dtype)
    points = np.random.default_rng(1).normal(size=(2, N, N, N)).astype(dtype)
    modes = transform.forward(points[:, slab(comm)])
    expected = np.fft.fftn(points, axes=(1, 2, 3), norm="forward")
    kx, ky, kz = (k.astype(int) for k in (transform.kx, transform.ky, transform.kz))
    assert agree(modes.dtype == transform.complex_dtype)
    assert agree(np.abs(modes - expected[:, kx, ky, kz]).max() < tolerance)
    mine = {int(k) for k, kept in zip(transform.ky.flat, transform.kept.flat, strict=True) if kept}
    assert sorted(k for part in comm.allgather(mine) for k in part) == [-3, -2, -1, 0, 1, 2, 3]
    x, y, z = np.meshgrid(*3 * [2 * np.pi / N * np.arange(N)], indexing="ij")
    flow = np.array(sheared(x, y, z)).astype(dtype)[:, slab(comm)]
    assert agree(np.abs(transform.backward(transform.forward(flow)) - flow).max() < tolerance)


@pytest.mark.parametrize("initial", [planar, rotated])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-10), (np.float32, 1e-5)])
def test_planar_vortex_decays_as_it_must(comm, agree, initial, dtype, tolerance):
    solver = evolve(comm, 25, viscosity=0.1, dt=0.04, dtype=dtype, initial=initial)
    start = TaylorGreen(comm, N, dtype=dtype, initial=initial).velocity()
    decay = np.exp(-2 * 0.1 * solver.time)
    assert solver.time == pytest.approx(1)
    assert agree(np.abs(solver.velocity() - decay * start).max() < tolerance)
    assert agree(abs(solver.energy() - decay**2 / 4) < tolerance)


def test_energy_goes_where_dissipation_says(comm):
    solver = TaylorGreen(comm, 24, viscosity=1 / 20, dt=0.02)
    energy, dissipation = [solver.energy()], [solver.dissipation()]
    for _ in range(50):
        solver.step()
        energy.append(solver.energy())
        dissipation.append(solver.dissipation())
    assert energy[0] == pytest.approx(1 / 8, rel=1e-14)
    simpson = np.array([1, *[4, 2] * 24, 4, 1]) / 3
    lost = 0.02 * simpson @ dissipation
    assert energy[0] - energy[-1] == pytest.approx(lost, rel=1e-8)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-13), (np.float32, 1e-5)])
def test_same_on_any_number_of_ranks(comm, agree, dtype, tolerance):
    options = {"viscosity": 0.01, "dtype": dtype, "initial": sheared}
    together = evolve(comm, 10, **options)
    alone = evolve(MPI.COMM_SELF, 10, **options)
    assert agree(np.abs(together.velocity() - alone.velocity()[:, slab(comm)]).max() < tolerance)
    assert together.energy() == pytest.approx(alone.energy(), rel=tolerance)


def test_refuses_unequal_slabs_and_other_dtypes(comm):
    with pytest.raises(TypeError, match="int32 of the points"):
        SlabFFT(comm, N, np.int32)
    if comm.size > 1:
        with pytest.raises(ValueError, match=f"n = 13 points cannot be cut into {comm.size} equal"):
            TaylorGreen(comm, 13)
