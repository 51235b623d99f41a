"""Persistent requests against MPI's own: prepared once, started again and again."""

from itertools import product

import numpy as np
import pytest
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


def cases(comm, dtype):
    """Name of the blocking method, arguments, what is sent and what is received; for every collective."""
    rank, size = comm.rank, comm.size
    root, at_root = size - 1, rank == size - 1
    counts = [N + 2 * p for p in range(size)]
    between = [[N * ((i + j) % 3) + i + j for j in range(size)] for i in range(size)]
    sends, recvs = between[rank], [row[rank] for row in between]
    zeros = lambda n: np.zeros(n, dtype)  # noqa: E731
    one = zeros(N)
    yield "Bcast", (one, root), one, one
    send, recv = zeros(N), zeros(N * size)
    yield "Allgather", (send, recv), send, recv
    send, recv = zeros(counts[rank]), zeros(sum(counts))
    yield "Allgatherv", (send, vspec(recv, counts)), send, recv
    send, recv = zeros(N * size), zeros(N * size)
    yield "Alltoall", (send, recv), send, recv
    recv = zeros(N * size)
    yield "Alltoall", (MPI.IN_PLACE, recv), recv, recv
    send, recv = zeros(sum(sends)), zeros(sum(recvs))
    yield "Alltoallv", (vspec(send, sends), vspec(recv, recvs)), send, recv
    send, recv = zeros(N), zeros(N * size)
    yield "Gather", (send, recv if at_root else None, root), send, recv
    send, recv = zeros(counts[rank]), zeros(sum(counts))
    yield "Gatherv", (send, vspec(recv, counts) if at_root else None, root), send, recv
    send, recv = zeros(N * size), zeros(N)
    yield "Scatter", (send if at_root else None, recv, root), send, recv
    send, recv = zeros(sum(counts)), zeros(counts[rank])
    yield "Scatterv", (vspec(send, counts) if at_root else None, recv, root), send, recv
    send, recv = zeros(N), zeros(N)
    yield "Allreduce", (send, recv), send, recv
    recv = zeros(N)
    yield "Allreduce", (MPI.IN_PLACE, recv), recv, recv
    send, recv = zeros(N), zeros(N)
    yield "Reduce", (send, recv if at_root else None, MPI.SUM, root), send, recv
    send, recv = zeros(N * size), zeros(N)
    yield "Reduce_scatter_block", (send, recv), send, recv
    send, recv = zeros(sum(counts)), zeros(counts[rank])
    yield "Reduce_scatter", (send, recv, counts), send, recv
    send, recv = zeros(sum(counts)), zeros(counts[rank])
    yield "Reduce_scatter", (send, recv), send, recv


@needs_mpi4
@pytest.mark.parametrize("dtype", ["f4", "i4"])
def test_collectives(comm, ours, agree, dtype):
    """All are prepared, then started several times with other values, on each rank in another order."""
    both = list(zip(cases(comm, dtype), cases(comm, dtype), strict=True))
    requests = [getattr(ours, f"{name}_init")(*args) for (name, args, *_), _ in both]
    assert all(isinstance(request, MPI.Prequest) and request != MPI.REQUEST_NULL for request in requests)
    rng, starts = np.random.default_rng(comm.rank), (_one_by_one, MPI.Prequest.Startall)
    for k, (start, wait) in enumerate(product(starts, (MPI.Request.Waitall, _some_by_some))):
        for i, ((*_, send, _), (name, args, same, _)) in enumerate(both):
            send[:] = same[:] = data(send.size, dtype, comm.rank + 10 * i + 100 * k)
            getattr(comm, name)(*args)
        before = ours.calls_accelerated
        order = [requests[i] for i in rng.permutation(len(requests))]
        start(order)
        wait(order)
        if not ours._marked.facts.nodes:  # inside a node, of several, messages are left to MPI
            assert agree(ours.calls_accelerated == before + len(requests))
        for (name, *_, got), (*_, want) in both:
            summed = "educe" in name and dtype != "i4"
            assert agree(near(got, want, comm.size) if summed else bits(got) == bits(want)), name
    for request in requests:
        request.Free()
    assert all(not request and request == MPI.REQUEST_NULL for request in requests)


@pytest.mark.parametrize("least", [0, 4000, 1 << 40], ids=["all", "some", "none"])
@pytest.mark.parametrize("form", ["Ialltoallw", "Alltoallw_init"])
def test_types_freed_after_the_call(comm, agree, form, least):
    """MPI keeps what it needs of them."""
    persistent = form.endswith("_init")
    if persistent and MPI.Get_version() < (4, 0) and least:
        pytest.skip("the MPI of this process has no persistent collectives")
    c = compcoll.Comm(comm, "lossless", min_nbytes=least)
    size, rank = comm.size, comm.rank
    # Rank 0 exchanges little with everyone, and so do the others with it.
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
    """Its part of the call is MPI's alone, while the others compress."""
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


def _one_by_one(requests):
    for request in requests:
        request.Start()


def _some_by_some(requests):
    left = list(requests)
    while left:
        done = MPI.Request.Waitsome(left)
        left = [request for i, request in enumerate(left) if i not in done]
