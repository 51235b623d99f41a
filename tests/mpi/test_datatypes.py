"""Derived datatypes in all calls, against plain MPI."""

import numpy as np
import pytest
from common import bits, data
from mpi4py import MPI

import compcoll

N = 3001


@pytest.fixture
def ours(comm):
    return compcoll.Comm(comm, "lossless", min_nbytes=0)


def square(base, order=MPI.ORDER_C):
    return base.Create_subarray([60, 70], [50, 60], [3, 7], order)


#: Types of 3000 elements of a basic type, within 20000.
TYPES = {
    "contiguous": lambda base: base.Create_contiguous(3000),
    "vector": lambda base: base.Create_vector(1000, 3, 5),
    "hvector": lambda base: base.Create_hvector(3000, 1, base.Get_size() + 3),
    "indexed": lambda base: base.Create_indexed([1000, 500, 1500], [4000, 1, 2000]),
    "hindexed": lambda base: base.Create_hindexed([2999, 1], [5 * base.Get_size() + 1, 3]),
    "indexed_block": lambda base: base.Create_indexed_block(10, (np.arange(300) * 7 % 300 * 13).tolist()),
    "hindexed_block": lambda base: base.Create_hindexed_block(1500, [40001, 1]),
    "subarray": square,
    "Fortran subarray": lambda base: square(base, MPI.ORDER_FORTRAN),
    "darray": lambda base: base.Create_darray(
        4, 3, [100, 120], [MPI.DISTRIBUTE_BLOCK, MPI.DISTRIBUTE_CYCLIC], [MPI.DISTRIBUTE_DFLT_DARG, 3], [2, 2]
    ),
    "resized": lambda base: base.Create_resized(-4, 2 * base.Get_size()).Create_contiguous(3000),
    "struct": lambda base: MPI.Datatype.Create_struct(
        [1, 2, 0], [40000, 7, 0], [square(base).Create_resized(0, 8), base.Create_vector(0, 1, 2), MPI.SHORT]
    ),
    "dup": lambda base: square(base).Dup(),
    "nested": lambda base: (
        base.Create_vector(5, 2, 3).Create_hvector(30, 1, 200).Create_indexed([3, 7], [8, 0])
    ),
    "downwards": lambda base: base.Create_vector(3000, 1, -2).Create_hindexed([1], [5999 * base.Get_size()]),
}


def alltoallw(c, a, b, one, other):
    c.Alltoallw(
        [a, [1] * c.size, [ROOM * p for p in range(c.size)], [one] * c.size],
        [b, [1] * c.size, [ROOM * p for p in range(c.size)], [other] * c.size],
    )


def exchange(c, a, b, one, other):
    c.Sendrecv([a, 1, one], (c.rank + 1) % c.size, 3, [b, 1, other], (c.rank - 1) % c.size, 3)


def message(c, a, b, one, other):
    if c.rank == c.size - 1 > 0:
        c.Send([a, 1, one], 0)
    elif c.rank == 0 and c.size > 1:
        c.Recv([b, 1, other], c.size - 1)


#: Bytes from one block to the next, a multiple of all extents in use.
ROOM = 200000


def spread(datatype):
    """Datatype for consecutive blocks, one for each rank."""
    _SPREAD.append(datatype.Create_resized(0, ROOM).Commit())
    return _SPREAD[-1]


_SPREAD: list[MPI.Datatype] = []


@pytest.fixture(autouse=True)
def freed():
    yield
    while _SPREAD:
        _SPREAD.pop().Free()


def v(c, buffer, datatype):
    return [buffer, [1] * c.size, list(range(c.size)), datatype]


def rooted(c, spec, root=0):
    return spec if c.rank == root else None


#: Calls, as functions of (communicator, send buffer, receive buffer, datatypes of both).
CALLS = {
    "Bcast": lambda c, a, b, one, other: c.Bcast([a, 1, one] if c.rank == 0 else [b, 1, other]),
    "Allgather": lambda c, a, b, one, other: c.Allgather([a, 1, one], [b, 1, spread(other)]),
    "Allgatherv": lambda c, a, b, one, other: c.Allgatherv([a, 1, one], v(c, b, spread(other))),
    "Alltoall": lambda c, a, b, one, other: c.Alltoall([a, 1, spread(one)], [b, 1, spread(other)]),
    "Alltoallv": lambda c, a, b, one, other: c.Alltoallv(v(c, a, spread(one)), v(c, b, spread(other))),
    "Alltoallw": alltoallw,
    "Gather": lambda c, a, b, one, other: c.Gather([a, 1, one], rooted(c, [b, 1, spread(other)])),
    "Gatherv": lambda c, a, b, one, other: c.Gatherv([a, 1, one], rooted(c, v(c, b, spread(other)))),
    "Scatter": lambda c, a, b, one, other: c.Scatter(rooted(c, [a, 1, spread(one)]), [b, 1, other]),
    "Scatterv": lambda c, a, b, one, other: c.Scatterv(rooted(c, v(c, a, spread(one))), [b, 1, other]),
    "Sendrecv": exchange,
    "Send": message,
}


#: Each type with two calls, and each call with two types or three.
SOME = [(kind, list(CALLS)[(i + k) % len(CALLS)]) for i, kind in enumerate(TYPES) for k in (0, 5)]


@pytest.mark.parametrize(("kind", "name"), SOME)
def test_every_call(comm, ours, agree, kind, name):
    """Values are MPI's with different layouts at both ends, and gaps are not touched."""
    kinds, make = list(TYPES.values()), TYPES[kind]
    base, partner = MPI.FLOAT, kinds[(kinds.index(make) + comm.rank) % len(kinds)]
    one, other = make(base).Commit(), partner(base).Commit()
    assert one.Get_size() == other.Get_size() == 12000
    mine = data(ROOM * comm.size // 4, "f4", comm.rank)
    got, want = (data(ROOM * comm.size // 4, "f4", comm.rank + 5) for _ in range(2))
    CALLS[name](comm, mine, want, one, other)
    CALLS[name](ours, mine, got, one, other)
    one.Free()
    other.Free()
    assert agree(bits(got) == bits(want))
    report = ours.report  # a message whose frame would be longer is sent uncompressed
    expected = comm.size > 1 and not (name == "Sendrecv" and "longer" in report.reason)
    assert agree(report.accelerated == expected or name == "Send")


@pytest.mark.parametrize(
    "name", ["Bcast", "Allgather", "Alltoall", "Alltoallw", "Gatherv", "Scatter", "Sendrecv"]
)
@pytest.mark.parametrize("spec", ["szp:abs=1e-3", "zfp:rate=16"])
def test_lossy_values_alone_change(comm, agree, name, spec):
    ours = compcoll.Comm(comm, spec, min_nbytes=0)
    one, other = TYPES["subarray"](MPI.DOUBLE).Commit(), TYPES["indexed"](MPI.DOUBLE).Commit()
    if name == "Bcast":
        other.Free()
        other = one.Dup()
    mine = np.sin(np.arange(ROOM * comm.size // 8) / 40 + comm.rank)
    got, want = np.full((2, mine.size), 7.0)
    if name == "Bcast" and comm.rank == 0:
        mine, got = mine.copy(), mine
    CALLS[name](comm, mine, want, one, other)
    CALLS[name](ours, got if name == "Bcast" and comm.rank == 0 else mine, got, one, other)
    if name == "Bcast" and comm.rank == 0:
        want = mine
    bound = ours.report.error_bound
    assert agree(np.abs(got - want).max() <= (bound if bound is not None else 1e-2))
    assert agree((got == 7.0).sum() == (want == 7.0).sum())
    if name == "Bcast":
        assert len({bytes(x) for x in comm.allgather(packed(got, one))}) == 1
    one.Free()
    other.Free()


def packed(array, datatype):
    values = np.zeros(datatype.Get_size(), np.uint8)
    datatype.Pack(array[: datatype.Get_extent()[1] // array.itemsize], values, 0, MPI.COMM_SELF)
    return values


def test_what_cannot_be_written_to(comm, ours, agree):
    vector = MPI.FLOAT.Create_vector(N, 1, 2).Commit()
    got = data(2 * N, "f4", comm.rank)
    got.flags.writeable = comm.rank != 0
    ours.Bcast([got, 1, vector], 0)
    assert agree(bits(got[:-1:2]) == bits(data(2 * N, "f4", 0)[:-1:2]))
    if comm.size > 1:
        lossy = ours.using("szp:abs=1e-3")
        with pytest.raises((BufferError, compcoll.FrameError, RuntimeError)):
            lossy.Bcast([got, 1, vector], 0)
    vector.Free()
