"""Every accelerated collective against plain MPI, bit for bit with a lossless policy."""

import numpy as np
import pytest
from calls import check, collectives
from common import DTYPES, FLOATS, bits, close_sum, data, spec, typed, uneven
from mpi4py import MPI

import compcoll
from compcoll import Policy, Rule
from compcoll.engine import _engine
from compcoll.operations import ALGORITHMS, OPERATIONS, Decides

SUMS = ["ring", "direct", "recursive_halving"]
#: Elements of a block, from none to several chunks, and the fewest bytes of a compressed message.
SIZES = [(0, 0), (1, 0), (1023, 0), (20001, 1 << 14)]


def with_algorithm(comm, name: str, codec: str = "lossless"):
    return compcoll.Comm(
        comm, policy=Policy(codec, min_nbytes=0, rules=(Rule(algorithm=name, chunk_nbytes=4096),))
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_are_those_of_mpi(comm, agree, dtype):
    """Values are MPI's with uneven counts, zero counts and changing roots, and gaps are not touched."""
    first = DTYPES.index(dtype)
    for i, (n, least) in enumerate(SIZES[first % 2 :: 2]):
        ours, root = compcoll.Comm(comm, "lossless", min_nbytes=least), (i + first // 2) % comm.size
        for call in collectives(comm.rank, comm.size, n, root, uneven(comm.size, n), gap=3).values():
            check(comm, ours, agree, call, dtype)
            large = comm.size > 1 and n * dtype.itemsize // comm.size >= least
            assert call.name != "Allreduce" or ours.report.accelerated == (large and n > 0)
        ours.Free()


@pytest.mark.parametrize("form", range(3), ids=["blocking", "nonblocking", "persistent"])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i4"])
def test_each_form_is_accelerated(comm, agree, dtype, form):
    """Each form of each collective is accelerated, persistent ones also with MPI libraries that have none."""
    ours = compcoll.Comm(comm, "lossless", min_nbytes=1000)
    for seed, call in enumerate(collectives(comm.rank, comm.size, 5003).values()):
        before = ours.calls_accelerated
        check(comm, ours, agree, call, dtype, form, seed)
        # MPI carries messages between two ranks of a node if there are several nodes.
        pairs = OPERATIONS[call.name].decides is Decides.PAIR and ours._marked.facts.nodes
        expected = comm.size > 1
        assert agree(pairs or ours.calls_accelerated == before + expected), call.name
        assert agree(pairs or (ours.report.op, ours.report.accelerated) == (call.name, expected)), call.name
    ours.Free()


@pytest.mark.parametrize("algorithm", ALGORITHMS["Bcast"])
def test_algorithms_of_bcast(comm, agree, algorithm):
    ours, n = with_algorithm(comm, algorithm), 50_001
    for root in range(comm.size):
        got = data(n, FLOATS[0], comm.rank)
        ours.Bcast(typed(got), root)
        assert agree(bits(got) == bits(data(n, FLOATS[0], root)))
        assert agree(comm.size == 1 or ours.report.algorithm in (algorithm, f"two_level {algorithm}"))


@pytest.mark.parametrize("algorithm", SUMS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sums(comm, agree, dtype, algorithm):
    ours = with_algorithm(comm, algorithm)
    for n in (0, 1, 5001):
        calls = collectives(comm.rank, comm.size, n, n % comm.size, uneven(comm.size, n))
        for call in calls.values():
            if call.summed is not None:
                check(comm, ours, agree, call, dtype)


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
        _engine.set_workers(workers, _engine.ALWAYS)
        for n in (1, 300_001):
            parts = [data(n, "i4", r) for r in range(comm.size)]
            got, everything = np.zeros(n, "i4"), np.zeros(n * comm.size, "i4")
            ours.Allreduce(parts[comm.rank], got)
            ours.Allgather(parts[comm.rank], everything)
            assert agree(close_sum(got, parts))
            assert agree(bits(everything) == bits(np.concatenate(parts)))


def test_workers_help_with_long_calls_alone(comm, agree, request):
    """Worker threads help with long calls and not with short ones.

    A rank that loses its core while it codes takes a short call for a long one, until the next call.
    """
    ours = compcoll.Comm(comm, "zfp:rate=16", min_nbytes=0)
    before = _engine.workers()
    request.addfinalizer(lambda: _engine.set_workers(before))
    _engine.set_workers(2, _engine.NAMED)
    for n, n_calls, workers in ((1000, 30, 0), (1 << 20, 2, 2)):
        parts, everything = data(n, "f4", comm.rank), np.zeros(n * comm.size, "f4")
        helped = []
        for _ in range(n_calls):
            ours.Allgather(parts, everything)
            helped.append(ours.report.workers)
        assert agree(workers * (comm.size > 1) in helped[1:])  # the first call measures how long coding takes
        assert agree(np.abs(everything[comm.rank * n :][:n] - parts).max() <= ours.report.error_bound)


def test_a_call_in_place_is_told_from_one_that_is_not(comm, agree):
    """In-place calls are distinguished from other calls with the same counts and types."""
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
