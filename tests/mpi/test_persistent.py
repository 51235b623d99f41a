"""Persistent requests against plain MPI: prepared once, started again and again."""

from itertools import product

import numpy as np
import pytest
from calls import collectives
from common import bits, data, vspec
from mpi4py import MPI
from test_nonblocking import near

import compcoll

N, STARTS = 20_011, 3
pytestmark = pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="a single rank sends nothing")
needs_mpi4 = pytest.mark.skipif(MPI.Get_version() < (4, 0), reason="MPI 3 has no persistent collectives")


@pytest.fixture
def ours(comm):
    return compcoll.Comm(comm, "lossless", min_nbytes=0)


@needs_mpi4
@pytest.mark.parametrize("dtype", ["f4", "i4"])
def test_collectives(comm, ours, agree, dtype):
    """Prepared calls are right when they start with other values, in another order on each rank."""
    calls = collectives(comm.rank, comm.size, N).values()
    mine, theirs = ([call.memory(dtype, 0, comm.rank) for call in calls] for _ in range(2))
    both = list(zip(calls, mine, theirs, strict=True))
    requests = [getattr(ours, f"{call.name}_init")(*call.arguments(*memory)) for call, memory, _ in both]
    assert all(isinstance(request, MPI.Prequest) and request != MPI.REQUEST_NULL for request in requests)
    rng, starts = np.random.default_rng(comm.rank), (_one_by_one, MPI.Prequest.Startall)
    for k, (start, wait) in enumerate(product(starts, (MPI.Request.Waitall, _some_by_some))):
        for i, (call, memory, same) in enumerate(both):
            for seed, array in enumerate(memory):
                if array is not None:
                    array[:] = same[seed][:] = data(array.size, dtype, comm.rank + 10 * i + 1000 * k + seed)
            getattr(comm, call.name)(*call.arguments(*same))
        before = ours.calls_accelerated
        order = [requests[i] for i in rng.permutation(len(requests))]
        start(order)
        wait(order)
        if not ours._marked.facts.nodes:  # MPI carries messages inside nodes if there are several
            assert agree(ours.calls_accelerated == before + len(requests))
        for call, (_, got), (_, want) in both:
            if got is not None:
                got, want = got[: call.n_results], want[: call.n_results]
            inexact = call.summed is not None and dtype != "i4"
            right = got is None or (near(got, want, comm.size) if inexact else bits(got) == bits(want))
            assert agree(right), call.name
    for request in requests:
        request.Free()
    assert all(not request and request == MPI.REQUEST_NULL for request in requests)


@pytest.mark.parametrize("least", [0, 4000, 1 << 40], ids=["all", "some", "none"])
@pytest.mark.parametrize("form", ["Ialltoallw", "Alltoallw_init"])
def test_types_freed_after_the_call(comm, agree, form, least):
    """Datatypes may be freed once Alltoallw has begun or is prepared: results are still MPI's."""
    persistent = form.endswith("_init")
    if persistent and MPI.Get_version() < (4, 0) and least:
        pytest.skip("the MPI of this process has no persistent collectives")
    c = compcoll.Comm(comm, "lossless", min_nbytes=least)
    size, rank = comm.size, comm.rank
    # Rank 0 exchanges few elements with each rank; the others exchange many with each other.
    counts = np.array([9 if 0 in (rank, p) else N for p in range(size)], "i4")
    places = np.array([16 * sum(counts[:p]) for p in range(size)], "i4")
    send, want = data(2 * sum(counts), "f8", rank), np.full(2 * sum(counts), 7.0)
    got = want.copy()
    every_other = MPI.DOUBLE.Create_resized(0, 16).Commit()
    comm.Alltoallw(
        [send, (counts, places), [every_other] * size], [want, (counts, places), [every_other] * size]
    )
    types = [every_other.Dup() for _ in range(size)]
    request = getattr(c, form)([send, (counts, places), types], [got, (counts, places), types])
    for type_ in types:
        type_.Free()
    for _ in range(STARTS if persistent else 1):
        if persistent:
            got[:] = 7
            request.Start()
        request.Wait()
        assert agree(bits(got) == bits(want))
    if persistent:
        request.Free()
    every_other.Free()
    c.Free()


@needs_mpi4
@pytest.mark.parametrize("n", [10, N])
def test_a_rank_that_exchanges_little(comm, agree, n):
    """Alltoallv is right if MPI carries all messages of rank 0 while the other ranks compress."""
    c, size = compcoll.Comm(comm, "lossless", min_nbytes=4000), comm.size
    counts = [n if 0 in (comm.rank, p) else N for p in range(size)]
    send, want = data(sum(counts), "f4", comm.rank), np.zeros(sum(counts), "f4")
    got = want.copy()
    comm.Alltoallv(vspec(send, counts), vspec(want, counts))
    requests = [c.Alltoallv_init(vspec(send, counts), vspec(got, counts)) for _ in range(3)]
    for request in requests:
        got[:] = 0
        request.Start()
        request.Wait()
        assert agree(bits(got) == bits(want))
        request.Free()
    c.Free()


@needs_mpi4
def test_more_calls_than_share_tags(comm, agree):
    """More calls than share tags (64) are right, with large, small and mixed-type messages in any order."""
    c, size, rank = compcoll.Comm(comm, "lossless", min_nbytes=4000), comm.size, comm.rank
    parts = MPI.Datatype.Create_struct([1, 1], [0, 4], [MPI.FLOAT, MPI.INT]).Commit()
    kinds, draw = [(MPI.DOUBLE, 1000), (MPI.DOUBLE, 9), (parts, 1000)], np.random.default_rng(3)
    send, left = data(1000 * size, "f8", rank), []
    for n_calls in (70, 40):
        for _ in range(n_calls):
            of = draw.integers(3, size=size)
            # Both ranks choose the same kind for a message: the small one if either of them does.
            mine = [kinds[1 if 1 in pair else max(pair)] for pair in ((of[rank], of[p]) for p in range(size))]
            blocks = ([n for _, n in mine], [8000 * p for p in range(size)]), [type_ for type_, _ in mine]
            want, got = np.zeros((2, send.size))
            comm.Alltoallw([send, *blocks], [want, *blocks])
            left.append((c.Alltoallw_init([send, *blocks], [got, *blocks]), got, want))
        order = [left[i][0] for i in np.random.default_rng(rank).permutation(len(left))]
        for start in (_one_by_one, MPI.Prequest.Startall):
            for _, got, _ in left:
                got[:] = 0
            start(order)
            MPI.Request.Waitall(order)
            assert agree(all(bits(got) == bits(want) for _, got, want in left))
        for request, *_ in left[::2]:
            request.Free()
        left = left[1::2]
    for request, *_ in left:
        request.Free()
    parts.Free()
    c.Free()


def _one_by_one(requests):
    for request in requests:
        request.Start()


def _some_by_some(requests):
    left = list(requests)
    while left:
        done = MPI.Request.Waitsome(left)
        left = [request for i, request in enumerate(left) if i not in done]
