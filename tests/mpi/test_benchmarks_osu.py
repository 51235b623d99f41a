"""Every operation of ``compcoll bench`` on large messages gives plain MPI's results."""

from functools import partial

import numpy as np
import pytest

from benchmarks.osu.data import source
from benchmarks.osu.operations import MESSAGES, NONBLOCKING, OPERATIONS
from benchmarks.osu.overlap import measure
from benchmarks.osu.timing import run_size
from benchmarks.osu.ways import PICKLED, Packed, Pickled
from compcoll import Comm

NBYTES = 4 << 20
ONCE = {"warmup": 1, "iters": 1}


@pytest.fixture
def comms(comm):
    return {"mpi": comm, "lossless": Comm(comm, "lossless")}


@pytest.fixture
def values(comm):
    return source(None, np.dtype("f4"), comm.rank)


@pytest.mark.exhaustive(but=8)
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation(comm, comms, values, agree, name):
    if name in MESSAGES and comm.size == 1:
        pytest.skip("needs two ranks")
    rows = run_size(OPERATIONS[name], comms, values, NBYTES, **ONCE)
    assert agree(all(row.sound for row in rows))
    assert agree(rows[1].accelerated == (comm.size > 1 and name != "barrier"))


@pytest.mark.exhaustive(but=1)
@pytest.mark.parametrize("name", NONBLOCKING)
def test_a_nonblocking_collective(comms, values, agree, name):
    assert agree(all(row.sound for row in measure(name, comms, values, NBYTES, **ONCE)))


@pytest.mark.exhaustive(but=1)
@pytest.mark.parametrize("name", PICKLED)
def test_objects(comm, comms, values, agree, name):
    if name in MESSAGES and comm.size == 1:
        pytest.skip("needs two ranks")
    objects = {"mpi": comm, **{f"{name} objects": Pickled(each) for name, each in comms.items()}}
    assert agree(all(row.sound for row in run_size(OPERATIONS[name], objects, values, NBYTES, **ONCE)))


@pytest.mark.exhaustive(but=1)
@pytest.mark.parametrize("axes", [(0, 2), (2, 0)])
def test_packed_blocks(comms, values, agree, axes):
    comms["packed"] = Packed(comms["lossless"])
    timed = partial(OPERATIONS["alltoallw"], axes=axes)
    assert agree(all(row.sound for row in run_size(timed, comms, values, NBYTES, **ONCE)))
