"""Frames in memory shared within a node give the same bits as messages, in any order of calls."""

import time

import numpy as np
import pytest
from common import bits, data
from mpi4py import MPI

import compcoll
from compcoll.engine import _engine
from compcoll.engine.group import survey
from compcoll.policy import Policy

N = 20000


@pytest.fixture(autouse=True)
def two_nodes(comm, monkeypatch):
    """Declare the first two ranks to be on one node, and all others on another."""
    if comm.size < 3:
        pytest.skip("needs three ranks")
    monkeypatch.setenv("COMPCOLL_NODES", ",".join(str(int(r > 1)) for r in range(comm.size)))


def accelerated(comm, codec="lossless"):
    return compcoll.Comm(comm, policy=Policy(codec, min_nbytes=0))


def apart(comm):
    """Communicator without any wrapper."""
    return MPI.Intracomm(comm).Split(0, comm.rank)


def test_the_same_bits_without_it(comm, agree, monkeypatch):
    results = []
    for wanted in ("1", "0"):
        monkeypatch.setenv("COMPCOLL_SHARED_MEMORY", wanted)
        ours = accelerated(apart(comm), "zfp:rate=8")
        assert agree(
            (ours._marked.neighbours is not None) == (wanted == "1" and (comm.rank < 2 or comm.size > 3))
        )
        got, blocks = np.empty(N, "f4"), np.empty(N * comm.size, "f4")
        ours.Allreduce(data(N, "f4", comm.rank), got)
        ours.Allgather(data(N, "f4", comm.rank), blocks)
        results.append((bits(got), bits(blocks)))
        ours.Free()
    assert agree(results[0] == results[1])


def test_a_variable_that_is_no_flag(comm, agree, monkeypatch):
    monkeypatch.setenv("COMPCOLL_SHARED_MEMORY", "perhaps" if comm.rank == 0 else "1")
    with pytest.raises((ValueError, compcoll.PolicyError), match="COMPCOLL_SHARED_MEMORY = 'perhaps'"):
        compcoll.Comm(comm)


@pytest.mark.skipif(MPI.get_vendor()[0] == "Open MPI", reason="it mixes up such duplicates")
def test_mpi_progresses_while_a_rank_waits_for_its_node(comm, agree):
    """Ranks that wait in a collective progress MPI, which completes the last rank's Idup."""
    ours, total = accelerated(comm), np.zeros(1024, "i4")
    mine = data(1024 * comm.size, "i4", comm.rank)
    ours.Barrier()
    made, request = comm.Idup()
    if comm.rank == comm.size - 1:
        request.Wait()
    ours.Reduce_scatter_block(mine, total)
    request.Wait()
    want = sum(data(1024 * comm.size, "i4", r) for r in range(comm.size))
    assert agree((total == want[1024 * comm.rank :][:1024]).all())
    made.Free()


def test_more_notices_than_a_mailbox_holds(comm, agree):
    """A rank that starts late completes 1004 calls that another rank has already begun."""
    ours = accelerated(comm)
    sent = [np.full(4096, i, "i4") for i in range(1000)]
    sums, blocks = np.empty((1000, 4096), "i4"), np.empty((4, comm.size * 300000), "i4")
    if comm.rank == 1:
        time.sleep(0.3)
    requests = [ours.Iallreduce(mine, total) for mine, total in zip(sent, sums, strict=True)]
    requests += [
        ours.Iallgather(np.full(300000, comm.rank + i, "i4"), whole) for i, whole in enumerate(blocks)
    ]
    MPI.Request.Waitall(requests)
    ranks = np.arange(comm.size).repeat(300000)
    assert agree(
        all((total == comm.size * i).all() for i, total in enumerate(sums))
        and all((whole == ranks + i).all() for i, whole in enumerate(blocks))
    )


def test_duplicates_and_parts_have_messages_of_their_own(comm, agree):
    """Pending calls on several communicators of the same ranks give right sums, begun in any order."""
    ours = accelerated(comm)
    comms = [ours, ours.Dup(), ours.using("raw"), ours.Split(0, comm.rank)]
    mine = [np.full(N, i + 1, "i4") for i in range(len(comms))]
    sums = [np.empty(N, "i4") for _ in comms]
    order = range(len(comms)) if comm.rank % 2 else reversed(range(len(comms)))
    requests = [(i, comms[i].Iallreduce(mine[i], sums[i])) for i in order]
    MPI.Request.Waitall([request for _, request in requests])
    seven = np.full(N, 7, "i4")
    prepared = [one.Allreduce_init(seven, total) for one, total in zip(comms, sums, strict=True)]
    ok = all((total == (i + 1) * comm.size).all() for i, total in enumerate(sums))
    for _ in range(3):
        MPI.Prequest.Startall(prepared)
        MPI.Request.Waitall(prepared)
    assert agree(ok and all((total == 7 * comm.size).all() for total in sums))
    for one in prepared:
        one.Free()
    for one in comms[1:]:
        one.Free()


def test_a_segment_that_is_not_there(comm):
    pid, fd, token = _engine.segment_address()
    assert not _engine.attach_segments([(pid, fd, token ^ 1)])
    assert not _engine.attach_segments([(pid, 1 << 20, token ^ 2)])
    assert not _engine.attach_segments([None])
    with pytest.raises(ValueError, match=f"segment {token ^ 1:#x} is not attached"):
        _engine.Neighbours(1, 0, [0, token ^ 1])


def test_a_rank_that_has_none(comm, agree, monkeypatch):
    """If one rank of a node cannot share memory, no rank of the node does."""
    if comm.rank == 0:
        monkeypatch.setattr(_engine, "segment_address", lambda: None)
    mine = survey(comm, None, [0] * comm.size)
    assert agree(mine.token == 0)
