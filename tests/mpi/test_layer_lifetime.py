"""Communicators in every order of making, first use and freeing, which MPI leaves to each rank."""

import numpy as np
import pytest
from common import bits, data
from mpi4py import MPI

import compcoll

N = 20000


@pytest.fixture
def ours(comm):
    if comm.size == 1:
        pytest.skip("needs two ranks")
    return compcoll.Comm(comm, "lossless", min_nbytes=0)


def agrees(new) -> bool:
    """Whether a communicator accelerates a broadcast, and a message to the next rank."""
    got, came = data(N, "f4", new.rank), np.empty(N, "f4")
    new.Ibcast(got).Wait()
    accelerated = new.report.accelerated
    new.Sendrecv(got, (new.rank + 1) % new.size, recvbuf=came)
    return accelerated and bits(came) == bits(got) == bits(data(N, "f4", 0))


def duplicate(comm):
    return comm.Dup()


def test_a_duplicate_outlives_the_one_that_it_was_made_of(ours, agree):
    origin = compcoll.Comm(MPI.COMM_WORLD.Dup(), "lossless", min_nbytes=0)
    new = origin.Dup()
    origin.Free()
    part = new.Split(0, new.rank)
    assert agree(agrees(part) and agrees(new))
    again = new.Dup()
    new.Free()
    assert agree(agrees(again))
    part.Free()
    again.Free()


@pytest.mark.parametrize(
    "wrap",
    [
        lambda c: c.using("zfp:rate=24"),
        compcoll.Comm,
        lambda c: compcoll.Comm(MPI.Intracomm(c), "raw"),
    ],
    ids=["using", "Comm", "plain"],
)
def test_one_rank_uses_a_duplicate_before_all_wrap_it(ours, agree, wrap):
    new, sent = ours.Dup(), data(N, "f4", 1)
    if new.rank == 0:
        assert not new.Iprobe()
        request = new.Isend(sent, 1)
    other = wrap(new)
    got = data(N, "f4", other.rank)
    other.Bcast(got)
    assert agree(np.allclose(got, data(N, "f4", 0), atol=1e-3))
    if new.rank == 0:
        request.Wait()
    elif new.rank == 1:
        new.Recv(got, 0)
        assert bits(got) == bits(sent)
    new.Free()


def test_links_are_measured_where_a_policy_needs_them(nodes_of_one, comm, ours, agree, monkeypatch):
    monkeypatch.setattr("compcoll.advisor._links", {})
    assert agree(ours._marked.measured is None)
    measured = ours.using("auto")._marked.measured
    assert agree(comm.size == 1 or 0 < measured.byte < 1)
    assert agree(len(set(comm.allgather(measured and measured.byte))) == 1)


def wrap(comm, min_nbytes=None):
    return compcoll.Comm(comm, "lossless", min_nbytes=min_nbytes)


@pytest.mark.parametrize(
    "make",
    [
        wrap,
        *(
            lambda c, d=d: d(wrap(c, 0))
            for d in (
                duplicate,
                lambda c: c.Split(0, c.rank),
            )
        ),
    ],
    ids=["Comm", "Dup", "Split"],
)
def test_a_first_nonblocking_call_waits_for_nobody(comm, agree, make):
    """Rank 0 begins a broadcast and then sends; rank 1 receives that, and then begins the broadcast."""
    if comm.size == 1:
        pytest.skip("needs two ranks")
    new, got, token = make(comm), data(N, "f4", comm.rank), np.zeros(1, "i4")
    if comm.rank == 1:
        comm.Recv(token, 0)
    request = new.Ibcast(got)
    if comm.rank == 0:
        comm.Send(token, 1)
    request.Wait()
    assert agree(new.report.accelerated or new.policy.min_nbytes > got.nbytes)
    assert agree(bits(got) == bits(data(N, "f4", 0)))
    if new != comm:
        new.Free()


def test_first_calls_in_opposite_orders(ours, agree):
    both = [ours.Dup(), ours.Dup()]
    got = [data(N, "f4", ours.rank + i) for i in range(2)]
    order = [0, 1] if ours.rank % 2 else [1, 0]
    requests = [both[i].Ibcast(got[i]) for i in order]
    MPI.Request.Waitall(requests)
    assert agree(all(bits(got[i]) == bits(data(N, "f4", i)) for i in range(2)))
    for new in both:
        new.Free()


def test_hundreds_of_calls_under_way_wait_for_nobody(ours, agree):
    """Tags are used again after that many calls; a rank that has begun them all lets the others begin."""
    token, n = np.zeros(1, "i4"), 500
    buffers = np.stack([data(64, "f4", ours.rank)] * n)
    if ours.rank == 1:
        ours.Recv(token, 0)
    requests = [ours.Ibcast(buffer) for buffer in buffers]
    if ours.rank == 0:
        ours.Send(token, 1)
    MPI.Request.Waitall(requests)
    assert agree((buffers == data(64, "f4", 0)).all())


MAKERS = {"Comm": compcoll.Comm, "using": lambda comm: compcoll.Comm(comm).using("raw")}


@pytest.mark.parametrize("maker", MAKERS)
def test_a_communicator_that_one_rank_does_not_make(comm, agree, monkeypatch, maker):
    """The others get an error, and so does the rank that comes when they have given up."""
    if comm.size == 1:
        pytest.skip("needs two ranks")
    compcoll.Comm(comm)
    comm.Set_name("fields")
    monkeypatch.setenv("COMPCOLL_TIMEOUT", "0.3")
    for late in (False, True):
        if (comm.rank == comm.size - 1) == late:
            with pytest.raises(
                TimeoutError, match=r"a Comm of fields: not all ranks .* COMPCOLL_TIMEOUT = 0.3 s"
            ):
                MAKERS[maker](comm)
        comm.Barrier()
