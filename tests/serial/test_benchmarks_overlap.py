"""Benchmarks of nonblocking collectives beside a computation, of objects, and of pairs of ranks."""

import time
from types import SimpleNamespace

import numpy as np
import pytest
from mpi4py import MPI

from benchmarks.osu.data import source
from benchmarks.osu.operations import COLLECTIVES, NONBLOCKING, partner_of
from benchmarks.osu.overlap import measure
from benchmarks.osu.pickled import PICKLED, Pickled
from benchmarks.osu.timing import run_size
from compcoll.cli import bench

F4 = np.dtype("f4")


@pytest.mark.parametrize("op", [op for op in PICKLED if op in COLLECTIVES])
def test_objects_hold_what_arrays_do(op):
    comms = {"mpi": MPI.COMM_SELF, "objects": Pickled(MPI.COMM_SELF)}
    _, row = run_size(COLLECTIVES[op], comms, source(None, F4, 0), 4096, iters=3)
    assert (row.error, row.sound) == (0.0, True)


def test_objects_that_are_lost_are_noticed():
    class Lost(Pickled):
        def settle(self):
            pass

    comms = {"mpi": MPI.COMM_SELF, "objects": Lost(MPI.COMM_SELF)}
    _, row = run_size(COLLECTIVES["allgather"], comms, source(None, F4, 0), 4096, iters=3)
    assert not row.sound


@pytest.mark.parametrize("op", NONBLOCKING)
def test_collectives_beside_a_computation(op):
    rows = measure(op, {"mpi": MPI.COMM_SELF, "own": MPI.COMM_SELF}, source(None, F4, 0), 4096, iters=3)
    assert [(row.name, row.nbytes, row.iters, row.sound) for row in rows] == [
        ("mpi", 4096, 3, True),
        ("own", 4096, 3, True),
    ]
    for row in rows:
        assert 0 < row.beside <= row.total
        assert row.overlap == pytest.approx(max(0, 100 * (1 - (row.total - row.beside) / row.alone)))
        assert row.slowed == pytest.approx(100 * (row.beside / row.compute - 1))


class Late:
    """A communicator whose requests take so many seconds, of which none are hidden, and change nothing."""

    size, rank, calls_accelerated = 1, 0, 0

    def Iallgather(self, send, recv):
        return SimpleNamespace(Wait=lambda: time.sleep(0.01))

    def Allgather(self, send, recv):
        recv[:] = send


def test_what_is_not_hidden_is_no_overlap_and_what_is_not_received_is_wrong():
    _, late = measure(
        "iallgather", {"mpi": MPI.COMM_SELF, "late": Late()}, source(None, F4, 0), 4096, iters=3
    )
    assert late.alone >= 0.01
    assert late.total >= late.beside + 0.01
    assert not late.sound


@pytest.mark.parametrize(
    ("size", "partners"), [(2, [1, 0]), (3, [1, 0, None]), (4, [2, 3, 0, 1]), (5, [2, 3, 0, 1, None])]
)
def test_pairs_of_both_halves(size, partners):
    assert [partner_of(SimpleNamespace(size=size, rank=rank)) for rank in range(size)] == partners


def test_the_command_knows_all_of_them():
    assert set(bench.COLLECTIVES) == set(COLLECTIVES)
    assert set(bench.NONBLOCKING) == set(NONBLOCKING)
