"""The Taylor-Green solver against exact solutions, its own balances, and itself on one rank."""

import numpy as np
import pytest
from mpi4py import MPI

from benchmarks.demo.slab_fft import SlabFFT
from benchmarks.demo.taylor_green import TaylorGreen

N = 12  # divisible by every number of ranks in use


def planar(x, y, z):
    """The two-dimensional vortex: an exact solution, which decays as exp(-2 t viscosity)."""
    return np.sin(x) * np.cos(y), -np.cos(x) * np.sin(y), 0.0


def sheared(x, y, z):
    """A flow without symmetry."""
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


class Watched:
    """A communicator that knows how it was used."""

    def __init__(self, comm):
        self._comm, self.sent, self.reductions = comm, [], 0
        self.Get_rank, self.Get_size = comm.Get_rank, comm.Get_size

    def Alltoall(self, send, recv):
        self.sent.append(send)
        self._comm.Alltoall(send, recv)

    def allreduce(self, value, op):
        self.reductions += 1
        return self._comm.allreduce(value, op=op)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-14), (np.float32, 2e-6)])
def test_transform_equals_numpys(comm, agree, dtype, tolerance):
    transform = SlabFFT(comm, N, dtype)
    points = np.random.default_rng(1).normal(size=(2, N, N, N)).astype(dtype)
    modes = transform.forward(points[:, slab(comm)])
    expected = np.fft.fftn(points, axes=(1, 2, 3), norm="forward")
    kx, ky, kz = (k.astype(int) for k in (transform.kx, transform.ky, transform.kz))
    assert agree(modes.dtype == transform.complex_dtype)
    assert agree(np.abs(modes - expected[:, kx, ky, kz]).max() < tolerance)


def test_no_mode_is_missing_or_stored_twice(comm):
    transform = SlabFFT(comm, N)
    mine = {int(k) for k, kept in zip(transform.ky.flat, transform.kept.flat, strict=True) if kept}
    everyone = sorted(k for part in comm.allgather(mine) for k in part)
    assert everyone == [-3, -2, -1, 0, 1, 2, 3]


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-14), (np.float32, 2e-6)])
def test_backward_undoes_forward(comm, agree, dtype, tolerance):
    velocity = TaylorGreen(comm, N, dtype=dtype, initial=sheared).velocity()
    x, y, z = np.meshgrid(*3 * [2 * np.pi / N * np.arange(N)], indexing="ij")
    expected = np.array(sheared(x, y, z))[:, slab(comm)]
    assert agree(velocity.dtype == dtype)
    assert agree(np.abs(velocity - expected).max() < tolerance)


@pytest.mark.parametrize("initial", [planar, rotated])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-10), (np.float32, 1e-5)])
def test_planar_vortex_decays_as_it_must(comm, agree, initial, dtype, tolerance):
    solver = evolve(comm, 25, viscosity=0.1, dt=0.04, dtype=dtype, initial=initial)
    start = TaylorGreen(comm, N, dtype=dtype, initial=initial).velocity()
    decay = np.exp(-2 * 0.1 * solver.time)
    assert solver.time == pytest.approx(1)
    assert agree(np.abs(solver.velocity() - decay * start).max() < tolerance)
    assert agree(abs(solver.energy() - decay**2 / 4) < tolerance)


def test_initial_energy_and_dissipation(comm):
    solver = TaylorGreen(comm, N, viscosity=0.01)
    assert solver.energy() == pytest.approx(1 / 8, rel=1e-14)
    assert solver.dissipation() == pytest.approx(0.01 * 3 / 4, rel=1e-14)


def test_energy_goes_where_dissipation_says(comm):
    solver = TaylorGreen(comm, 24, viscosity=1 / 20, dt=0.02)
    energy, dissipation = [solver.energy()], [solver.dissipation()]
    for _ in range(50):
        solver.step()
        energy.append(solver.energy())
        dissipation.append(solver.dissipation())
    simpson = np.array([1, *[4, 2] * 24, 4, 1]) / 3
    lost = 0.02 * simpson @ dissipation
    assert energy[0] - energy[-1] == pytest.approx(lost, rel=1e-8)


def test_nonlinear_term_conserves_energy(comm):
    solver = evolve(comm, 20, viscosity=0.0, dt=0.01, initial=sheared)
    start = TaylorGreen(comm, N, viscosity=0.0, initial=sheared)
    assert solver.energy() == pytest.approx(start.energy(), rel=1e-9)
    moved = np.abs(solver.velocity() - start.velocity()).max()
    assert comm.allreduce(moved, op=MPI.MAX) > 0.1


def test_velocity_stays_free_of_divergence(comm, agree):
    solver = evolve(comm, 10, viscosity=0.01, initial=sheared)
    assert agree(np.abs(np.sum(solver.k * solver.modes, axis=0)).max() < 1e-15)


def test_order_of_time_integration(comm):
    def after(steps):
        return evolve(comm, steps, viscosity=0.02, dt=0.8 / steps, initial=sheared).velocity()

    exact = after(64)
    coarse, fine = (comm.allreduce(np.abs(after(s) - exact).max(), op=MPI.MAX) for s in (8, 16))
    assert 12 < coarse / fine < 20


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-13), (np.float32, 1e-5)])
def test_same_on_any_number_of_ranks(comm, agree, dtype, tolerance):
    options = {"viscosity": 0.01, "dtype": dtype, "initial": sheared}
    together = evolve(comm, 10, **options)
    alone = evolve(MPI.COMM_SELF, 10, **options)
    assert agree(np.abs(together.velocity() - alone.velocity()[:, slab(comm)]).max() < tolerance)
    assert together.energy() == pytest.approx(alone.energy(), rel=tolerance)
    assert together.dissipation() == pytest.approx(alone.dissipation(), rel=tolerance)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_communicates_in_equal_contiguous_blocks(comm, agree, dtype):
    watched = Watched(comm)
    solver = TaylorGreen(watched, N, dtype=dtype)
    watched.sent.clear()
    solver.step()
    assert agree(len(watched.sent) == 8)
    assert agree(all(b.flags.c_contiguous and b.dtype == dtype for b in watched.sent))
    assert agree(all(len(b) == comm.size for b in watched.sent))
    solver.energy()
    assert agree(watched.reductions == 1)


def test_refuses_unequal_slabs_and_other_dtypes(comm):
    with pytest.raises(TypeError, match="int32 of the points"):
        SlabFFT(comm, N, np.int32)
    if comm.size > 1:
        with pytest.raises(ValueError, match=f"n = 13 points cannot be cut into {comm.size} equal"):
            TaylorGreen(comm, 13)
