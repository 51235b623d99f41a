"""Alltoallw, with a datatype for each pair of ranks, against plain MPI."""

import numpy as np
import pytest
from common import FORMS, bits, complete, data, fails
from mpi4py import MPI

import compcoll
from compcoll.operations import OPERATIONS

N = 3001


@pytest.fixture
def ours(comm):
    return compcoll.Comm(comm, "lossless", min_nbytes=0)


def shares(n, size):
    """``(n, first)`` of each rank's part of an axis."""
    bounds = [n * r // size for r in range(size + 1)]
    return [(bounds[r + 1] - bounds[r], bounds[r]) for r in range(size)]


def slabs(shape, axis, parts, base):
    """Committed subarray types, one for each part of an axis of an array of this shape."""
    types = []
    for n, first in parts:
        sub, starts = list(shape), [0] * len(shape)
        sub[axis], starts[axis] = n, first
        types.append(base.Create_subarray(list(shape), sub, starts).Commit())
    return types


def transposition(comm, shape, before, after, dtype="c16"):
    """Transposition of a distributed array as in mpi4py-fft: (input, result, send types, receive types)."""
    base = MPI.Datatype.fromcode(np.dtype(dtype).char)
    whole = np.arange(np.prod(shape)).astype(dtype).reshape(shape)
    parts = [shares(n, comm.size) for n in shape]
    cut = [slice(None)] * len(shape)
    cut[before] = slice(parts[before][comm.rank][1], sum(parts[before][comm.rank]))
    mine = np.ascontiguousarray(whole[tuple(cut)])
    cut = [slice(None)] * len(shape)
    cut[after] = slice(parts[after][comm.rank][1], sum(parts[after][comm.rank]))
    want = np.ascontiguousarray(whole[tuple(cut)])
    sends = slabs(mine.shape, after, parts[after], base)
    recvs = slabs(want.shape, before, parts[before], base)
    return mine, want, sends, recvs


def free(*types):
    for datatype in types:
        datatype.Free()


@pytest.fixture(params=FORMS)
def alltoallw(request):
    """Alltoallw in any form, as a function of the communicator and the arguments."""
    method = OPERATIONS["Alltoallw"].forms[FORMS.index(request.param)]
    return lambda comm, *args: complete(comm, method, args)


@pytest.mark.parametrize(
    ("before", "after", "dtype"), [(0, 1, "c16"), (1, 0, "f8"), (2, 0, "f4"), (1, 2, "c16")]
)
def test_transposition(comm, ours, agree, alltoallw, before, after, dtype):
    mine, want, sends, recvs = transposition(comm, (17, 12, 9), before, after, dtype)
    counts = [1] * comm.size, [0] * comm.size
    for one, other in (
        ([mine, counts, sends], recvs),
        ([mine, sends], recvs),
        ((mine, *counts, sends), tuple(recvs)),
    ):
        got = np.zeros_like(want)
        alltoallw(ours, one, [got, counts, other])
        assert agree(bits(got) == bits(want))
        assert ours.report.accelerated == (comm.size > 1)
    free(*sends, *recvs)


def test_transposition_of_what_is_in_place(comm, ours, agree, alltoallw):
    vector = MPI.DOUBLE.Create_vector(N, 1, 2).Commit()
    got, want = (data(2 * N * comm.size, "f8", comm.rank) for _ in range(2))
    for used, buf in ((ours, got), (comm, want)):
        where = [1] * comm.size, [p * 16 * N for p in range(comm.size)]
        alltoallw(used, MPI.IN_PLACE, [buf, where, [vector] * comm.size])
    assert agree(bits(got) == bits(want))
    vector.Free()


def test_each_pair_has_its_type(comm, ours, agree, alltoallw):
    """Values are MPI's if types, layouts and counts differ between pairs, with mixed and empty ones."""
    size, rank = comm.size, comm.rank
    mixed = MPI.Datatype.Create_struct([1, 1], [0, 8], [MPI.INT, MPI.DOUBLE]).Create_resized(0, 16)
    bases = [MPI.DOUBLE, MPI.FLOAT, mixed, MPI.INT]
    counts = [0 if (rank + p) % 7 == 5 else N for p in range(size)]
    displs = [20 * N * p for p in range(size)]
    sends, recvs = [], []
    for p in range(size):
        base = bases[(rank + p) % 4]
        stride = base.Get_extent()[1] + 4 * (rank + 1) * (base != mixed)
        sends.append(base.Create_resized(0, stride).Commit())
        recvs.append(base.Dup().Commit())
    mine = data(5 * N * size + 5 * N, "f4", rank)
    got, want = (data(5 * N * size, "f4", rank + 9) for _ in range(2))
    for used, buf in ((ours, got), (comm, want)):
        alltoallw(used, [mine, (counts, displs), sends], [buf, (counts, displs), recvs])
    assert agree(bits(got) == bits(want))
    assert (ours.calls_accelerated > 0) == (size > 1)
    free(*sends, *recvs, mixed)


def test_types_without_one_basic_type_are_declined(comm):
    strict = compcoll.Comm(comm, "lossless", min_nbytes=0, strict=True)
    mixed = MPI.Datatype.Create_struct([1, 1], [0, 8], [MPI.INT, MPI.DOUBLE]).Commit()
    got = np.zeros((comm.size, 16), np.uint8)
    spec = [got, [1] * comm.size, [16 * p for p in range(comm.size)], [mixed] * comm.size]
    if comm.size > 1:
        with fails("FALLBACK", "type"):
            strict.Alltoallw(spec, [got.copy(), *spec[1:]])
    mixed.Free()


def test_lossy_within_its_bound(comm, agree, alltoallw):
    ours = compcoll.Comm(comm, codec="szp:abs=1e-3", min_nbytes=0)
    mine, _, sends, recvs = transposition(comm, (16, 24, 20), 0, 1, "f8")
    mine = np.sin(mine)
    got, want = np.full((2, *recvs_shape(comm, (16, 24, 20), 1)), 7.0)
    alltoallw(ours, [mine, sends], [got, recvs])
    comm.Alltoallw([mine, sends], [want, recvs])
    assert agree(np.abs(got - want).max() <= 1e-3)
    assert agree(comm.size == 1 or (ours.report.error_bound is not None and bits(got) != bits(want)))
    free(*sends, *recvs)


def recvs_shape(comm, shape, axis):
    shape = list(shape)
    shape[axis] = shares(shape[axis], comm.size)[comm.rank][0]
    return shape


@pytest.mark.skipif(MPI.COMM_WORLD.size < 3, reason="needs two peers of different types")
@pytest.mark.parametrize("form", ["Alltoallw", "Ialltoallw"])
def test_report_of_a_call_of_several_types(comm, nodes_of_one, agree, form):
    """Each datatype is a part of its own, the report sums all parts, and the call is counted once."""
    fresh = comm.Dup()
    ours, size, n = compcoll.Comm(fresh, "raw", min_nbytes=0), comm.size, 10_000
    kinds = [(MPI.FLOAT, 4), (MPI.DOUBLE, 8)]
    theirs, mine = [kinds[p % 2] for p in range(size)], kinds[comm.rank % 2]
    send, recv = np.ones(2 * n * size, "f4"), np.zeros(2 * n * size, "f4")
    counts, displs = [n] * size, [8 * n * p for p in range(size)]
    out = [send, (counts, displs), [of for of, _ in theirs]]
    request = getattr(ours, form)(out, [recv, (counts, displs), [mine[0]] * size])
    if request is not None:
        request.Wait()
    nbytes = sum(n * nbytes for p, (_, nbytes) in enumerate(theirs) if p != comm.rank)
    assert agree(ours.report.messages == size - 1 and ours.report.raw_nbytes == nbytes)
    assert agree(ours.calls_accelerated == 1)
    fresh.Free()
