"""`compcoll.summary`: totals over all communicators of a process."""

import numpy as np
import pytest
from mpi4py import MPI

import compcoll

many = pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="a single rank sends nothing")
N = 1 << 14


@pytest.fixture
def ours(comm):
    return compcoll.Comm(comm, "lossless", min_nbytes=1000)


@pytest.fixture
def since():
    """Function of the growth since a test began, by operation: calls, accelerated, bytes, wire bytes."""
    before = compcoll.summary().operations

    def grown():
        found = {}
        for op, now in compcoll.summary().operations.items():
            then = before.get(op, compcoll.Summary())
            pairs = zip(counts(now), counts(then), strict=True)
            if now != then:
                found[op] = tuple(a - b for a, b in pairs)
        return found

    return grown


def counts(summary):
    return summary.calls, summary.accelerated, summary.raw_nbytes, summary.wire_nbytes


@many
def test_communicators_that_a_library_made_count(ours, since, agree):
    x, y = np.arange(N * ours.size, dtype="f8"), np.empty(N * ours.size)
    raw = wire = 0
    for _ in range(2):
        own = ours.Dup()
        part = own.Split(0, own.rank)
        for comm in (own, part):
            comm.Alltoall(x, y)
            raw, wire = raw + comm.report.raw_nbytes, wire + comm.report.wire_nbytes
        part.Free()
        own.Free()
    assert agree(ours.calls_accelerated == 0)
    assert agree(since() == {"Alltoall": (4, 4, raw, wire)})
    assert agree(0 < wire < raw)


def test_small_calls_count_and_are_not_accelerated(ours, since, agree):
    x, y, peer = np.zeros(8), np.zeros(8), ours.rank ^ 1
    for _ in range(3):
        ours.Bcast(x)
        ours.Allreduce(x, y)
        ours.Iallreduce(x, y).Wait()
        ours.bcast("small")  # two calls of mpi4py's
        if ours.size % 2 == 0:
            ours.Sendrecv(x, peer, 0, y, peer)
            MPI.Request.Waitall([ours.Isend(x, peer), ours.Irecv(y, peer)])
    found = {"Bcast": 9, "Allreduce": 6}
    if ours.size % 2 == 0:
        found |= {"Sendrecv": 3, "Send": 3, "Recv": 3}
    assert agree(since() == {op: (n, 0, 0, 0) for op, n in found.items()})


@many
def test_each_form_of_a_call_counts_once(ours, since, agree):
    size = ours.size
    x, y = np.arange(N * size, dtype="f8"), np.empty(N * size)
    for _ in range(2):  # the second time by a plan
        ours.Alltoall(x, y)
        ours.Ialltoall(x, y).Wait()
    prepared = ours.Alltoall_init(x, y)
    assert agree(since()["Alltoall"][:2] == (4, 4)), "preparing is no call"
    for _ in range(2):
        prepared.Start()
        prepared.Wait()
    prepared.Free()
    assert agree(since()["Alltoall"][:2] == (6, 6))
    whole = [x, [N] * size]
    for alltoallv in (ours.Alltoallv, lambda *args: ours.Ialltoallv(*args).Wait()):
        alltoallv(whole, [y, [N] * size])
    started = MPI.Get_version() >= (4, 0)  # MPI carries a part of it
    if started:
        prepared = ours.Alltoallv_init(whole, [y, [N] * size])
        prepared.Start()
        prepared.Wait()
        prepared.Free()
    assert agree(since()["Alltoallv"][:2] == (2 + started,) * 2)
    assert agree(all(0 < wire < raw for *_, raw, wire in since().values()))


@many
def test_messages_of_several_kinds_are_one_call(ours, since, agree):
    """Messages of several kinds are one counted call.

    Their chunks differ, so that the engine carries them in calls of their own.
    """
    size, rank = ours.size, ours.rank
    sizes = [1 << (10 + 4 * ((i + j) % 3)) for i in range(size) for j in range(size)]
    to, of = sizes[rank * size : (rank + 1) * size], sizes[rank::size]
    x, y = np.arange(sum(to), dtype="f8"), np.empty(sum(of))
    before = ours.calls_accelerated
    ours.Alltoallv([x, to], [y, of])
    assert agree(ours.calls_accelerated - before == 1)
    ours.Ialltoallv([x, to], [y, of]).Wait()
    (found,) = since().values()
    nbytes = 8 * 2 * sum(n for peer, n in enumerate(to) if peer != rank)
    assert agree(found[:3] == (2, 2, nbytes)), "bytes of all kinds"


@many
def test_messages_count(ours, since, agree):
    x, y, rank = np.arange(N, dtype="f8"), np.empty(N), ours.rank
    if rank == 0:
        ours.Send(x, 1)
        ours.Isend(x, 1).Wait()
        ours.Ssend(x, 1)
        expected = {"Send": (3, 3)}
    elif rank == 1:
        ours.Recv(y, 0)
        ours.Irecv(y, 0).Wait()
        ours.Recv(y, 0)
        expected = {"Recv": (3, 3)}
    else:
        expected = {}
    assert agree({op: one[:2] for op, one in since().items()} == expected)
    ours.bcast(x if rank == 0 else None)
    assert agree(since()["Bcast"][1] == 1)


def test_totals_are_sums_and_readable(ours):
    ours.Bcast(np.zeros(N))
    found = compcoll.summary()
    every = [counts(one) for one in found.operations.values()]
    assert counts(found) == tuple(map(sum, zip(*every, strict=True)))
    first, *rest = str(found).splitlines()
    sent = f"{found.raw_nbytes} -> {found.wire_nbytes} bytes ({found.ratio:.2f}x)"
    assert first == f"{found.calls} calls, {found.accelerated} accelerated, {sent}"
    assert [line.split(":")[0].strip() for line in rest] == sorted(found.operations)
