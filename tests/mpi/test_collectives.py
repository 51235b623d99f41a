"""Every accelerated collective against MPI's own, bit for bit under a lossless policy."""

import numpy as np
import pytest
from common import BF16, COUNTS, DTYPES, FLOATS, bits, close_sum, data, offsets, spec, typed, uneven, vspec
from mpi4py import MPI

import compcoll
from compcoll import Policy, Rule
from compcoll.engine import _engine
from compcoll.operations import ALGORITHMS

SUMS = ["ring", "direct", "recursive_halving"]
SOME = [np.dtype("f4"), np.dtype("f2"), BF16, np.dtype("i4"), np.dtype("c16")]


@pytest.fixture(params=[0, None], ids=["all", "default"])
def ours(comm, request):
    """Accelerated from the first byte on, or from the default threshold."""
    return compcoll.Comm(comm, "lossless", min_nbytes=request.param)


def with_algorithm(comm, name: str, codec: str = "lossless"):
    return compcoll.Comm(
        comm, policy=Policy(codec, min_nbytes=0, rules=(Rule(algorithm=name, chunk_nbytes=4096),))
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bcast(comm, ours, agree, dtype):
    for n in COUNTS:
        for root in range(comm.size):
            got, want = data(n, dtype, comm.rank), data(n, dtype, comm.rank)
            ours.Bcast(typed(got), root)
            comm.Bcast(spec(want), root)
            assert agree(bits(got) == bits(want))


@pytest.mark.parametrize("algorithm", ALGORITHMS["Bcast"])
def test_algorithms_of_bcast(comm, agree, algorithm):
    ours, n = with_algorithm(comm, algorithm), 50_001
    for root in range(comm.size):
        got = data(n, FLOATS[0], comm.rank)
        ours.Bcast(typed(got), root)
        assert agree(bits(got) == bits(data(n, FLOATS[0], root)))
        assert agree(comm.size == 1 or ours.report.algorithm in (algorithm, f"two_level {algorithm}"))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_allgather(comm, ours, agree, dtype):
    for n in COUNTS:
        mine = data(n, dtype, comm.rank)
        got, want = np.zeros((2, comm.size * n), dtype)
        ours.Allgather(typed(mine), typed(got))
        comm.Allgather(spec(mine), spec(want))
        assert agree(bits(got) == bits(want))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_alltoall(comm, ours, agree, dtype):
    for n in COUNTS:
        send = data(comm.size * n, dtype, comm.rank)
        got, want = np.zeros((2, comm.size * n), dtype)
        ours.Alltoall(typed(send), typed(got))
        comm.Alltoall(spec(send), spec(want))
        assert agree(bits(got) == bits(want))


@pytest.mark.parametrize("dtype", SOME, ids=str)
def test_gather_and_scatter(comm, ours, agree, dtype):
    for n in COUNTS:
        for root in range(comm.size):
            mine, all_of_them = data(n, dtype, comm.rank), data(n * comm.size, dtype, comm.rank)
            got, want = np.zeros((2, n * comm.size), dtype)
            at_root = comm.rank == root
            ours.Gather(typed(mine), typed(got) if at_root else None, root)
            comm.Gather(spec(mine), spec(want) if at_root else None, root)
            assert agree(bits(got) == bits(want))
            got, want = np.zeros((2, n), dtype)
            ours.Scatter(typed(all_of_them) if at_root else None, typed(got), root)
            comm.Scatter(spec(all_of_them) if at_root else None, spec(want), root)
            assert agree(bits(got) == bits(want))


@pytest.mark.parametrize("gap", [0, 3])
@pytest.mark.parametrize("dtype", SOME, ids=str)
def test_vectors(comm, ours, agree, dtype, gap):
    """Uneven counts with zeros among them; what lies between the blocks is not touched."""
    size, rank = comm.size, comm.rank
    for n in (1, 1023, 70001):
        counts = uneven(size, n)
        displs = offsets(counts, gap)
        mine = data(counts[rank], dtype, rank)
        room = sum(counts) + gap * size
        got, want = np.full((2, room), 7, dtype)
        ours.Allgatherv(typed(mine), vspec(got, counts, displs))
        comm.Allgatherv(spec(mine), vspec(spec(want), counts, displs))
        assert agree(bits(got) == bits(want))
        for root in range(size):
            got, want = np.full((2, room), 7, dtype)
            ours.Gatherv(typed(mine), vspec(got, counts, displs) if rank == root else None, root)
            comm.Gatherv(spec(mine), vspec(spec(want), counts, displs) if rank == root else None, root)
            assert agree(bits(got) == bits(want))
            source = data(room, dtype, rank)
            got, want = np.full((2, counts[rank]), 7, dtype)
            ours.Scatterv(vspec(source, counts, displs) if rank == root else None, typed(got), root)
            comm.Scatterv(vspec(spec(source), counts, displs) if rank == root else None, spec(want), root)
            assert agree(bits(got) == bits(want))


@pytest.mark.parametrize("dtype", SOME, ids=str)
def test_alltoallv(comm, ours, agree, dtype):
    size, rank = comm.size, comm.rank
    for n in (1, 1023, 70001):
        table = [[(0, n, 1, n // 2)[(i + 2 * j) % 4] for j in range(size)] for i in range(size)]
        out, into = table[rank], [table[p][rank] for p in range(size)]
        send = data(sum(out) + 2 * size, dtype, rank)
        got, want = np.full((2, sum(into) + 3 * size), 7, dtype)
        ours.Alltoallv(vspec(send, out, offsets(out, 2)), vspec(got, into, offsets(into, 3)))
        comm.Alltoallv(vspec(spec(send), out, offsets(out, 2)), vspec(spec(want), into, offsets(into, 3)))
        assert agree(bits(got) == bits(want))
        # Ranks without a large message take no part in the compressed ones; the next call still fits.
        total = np.ones(n, dtype)
        ours.Bcast(typed(total), 0)


@pytest.mark.parametrize("algorithm", SUMS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sums(comm, agree, dtype, algorithm):
    ours, size, rank = with_algorithm(comm, algorithm), comm.size, comm.rank
    for n in (0, 1, 5001):
        parts = [data(n * size, dtype, r) for r in range(size)]
        whole, block = np.zeros(n * size, dtype), np.zeros(n, dtype)
        ours.Allreduce(typed(parts[rank]), typed(whole))
        assert agree(close_sum(whole, parts))
        assert agree(bits(whole) == comm.bcast(bits(whole)))
        ours.Reduce_scatter_block(typed(parts[rank]), typed(block))
        own = [p[rank * n : (rank + 1) * n] for p in parts]
        assert agree(close_sum(block, own))
        root = n % size
        whole[:] = 0
        ours.Reduce(typed(parts[rank]), typed(whole) if rank == root else None, root=root)
        assert agree(rank != root or close_sum(whole, parts))


@pytest.mark.parametrize("algorithm", SUMS)
@pytest.mark.parametrize("dtype", [np.dtype("f4"), BF16, np.dtype("i8")], ids=str)
def test_reduce_scatter(comm, agree, dtype, algorithm):
    ours, size, rank = with_algorithm(comm, algorithm), comm.size, comm.rank
    for n in (1, 5001):
        counts = uneven(size, n)
        parts = [data(sum(counts), dtype, r) for r in range(size)]
        start = offsets(counts)[rank]
        own = [p[start : start + counts[rank]] for p in parts]
        got = np.zeros(counts[rank], dtype)
        ours.Reduce_scatter(typed(parts[rank]), typed(got), counts)
        assert agree(close_sum(got, own))
        got[:] = 0
        ours.Reduce_scatter(typed(parts[rank]), typed(got))
        assert agree(close_sum(got, own))


def test_default_threshold_of_sums(comm, agree):
    ours, n = compcoll.Comm(comm, "lossless"), 300_001
    parts = [data(n, "f4", r) for r in range(comm.size)]
    got = np.zeros(n, "f4")
    ours.Allreduce(parts[comm.rank], got)
    assert agree(close_sum(got, parts))
    assert agree(ours.report.accelerated == (comm.size > 1))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_recursive_doubling(comm, agree, dtype):
    ours, n = with_algorithm(comm, "recursive_doubling"), 5001
    mine, (got, want) = data(n, dtype, comm.rank), np.zeros((2, n * comm.size), dtype)
    if comm.size == 3:
        with pytest.raises(MPI.Exception, match="power of two"):
            ours.Allgather(typed(mine), typed(got))
        return
    ours.Allgather(typed(mine), typed(got))
    comm.Allgather(spec(mine), spec(want))
    assert agree(bits(got) == bits(want))


@pytest.mark.parametrize("op", [MPI.MAX, MPI.MIN, MPI.PROD], ids=["max", "min", "prod"])
def test_other_operations_are_mpis(comm, agree, op):
    ours = compcoll.Comm(comm, "lossless", min_nbytes=0)
    mine, (got, want) = data(1000, "f8", comm.rank), np.zeros((2, 1000))
    ours.Allreduce(mine, got, op)
    comm.Allreduce(mine, want, op)
    assert agree(bits(got) == bits(want))
    assert not ours.report.accelerated
    assert "SUM" in ours.report.reason or comm.size == 1
    own = MPI.Op.Create(lambda a, b, t: None)
    ours.Allreduce(mine, got, own)
    assert not ours.report.accelerated
    own.Free()


def test_threads_give_the_same(comm, agree, request):
    ours = compcoll.Comm(comm, "lossless", min_nbytes=0)
    before = _engine.workers()
    request.addfinalizer(lambda: _engine.set_workers(before))
    for workers in (1, 3):
        _engine.set_workers(workers)
        for n in (1, 300_001):
            parts = [data(n, "i4", r) for r in range(comm.size)]
            got, everything = np.zeros(n, "i4"), np.zeros(n * comm.size, "i4")
            ours.Allreduce(parts[comm.rank], got)
            ours.Allgather(parts[comm.rank], everything)
            assert agree(close_sum(got, parts))
            assert agree(bits(everything) == bits(np.concatenate(parts)))


def test_a_call_in_place_is_told_from_one_that_is_not(comm, agree):
    """Their counts and types are the same."""
    ours, n = compcoll.Comm(comm, "lossless", min_nbytes=0), 300
    want = np.full(n, sum(range(comm.size)), "f8")
    for in_place in (True, False, True):
        send, recv = np.full(n * comm.size, comm.rank, "f8"), np.zeros(n)
        if in_place:
            ours.Reduce_scatter_block(MPI.IN_PLACE, [send, n, MPI.DOUBLE])
        else:
            ours.Reduce_scatter_block(send, recv)
        assert agree(((send[:n] if in_place else recv) == want).all())
    ours.Free()
