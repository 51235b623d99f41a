"""Communicators are made, first used and freed in any order on each rank, as MPI allows."""

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
    """True if a communicator accelerates a broadcast, and a message arrives from the rank before."""
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
    monkeypatch.setattr("compcoll.policy.advisor._links", {})
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
    """A first nonblocking call returns before other ranks make theirs.

    Rank 0 begins a broadcast and then sends; rank 1 receives that message and then begins the broadcast.
    """
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
    """Beginning 500 calls, after which tags are reused, does not wait for a rank that has begun none."""
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
    """A communicator that one rank does not make is an error for the others, and later for that rank."""
    if comm.size == 1:
        pytest.skip("needs two ranks")
    compcoll.Comm(comm)
    comm.Set_name("fields")
    monkeypatch.setenv("COMPCOLL_TIMEOUT", "0.1")
    for late in (False, True):
        if (comm.rank == comm.size - 1) == late:
            with pytest.raises(
                TimeoutError, match=r"a Comm of fields: not all ranks .* COMPCOLL_TIMEOUT = 0.1 s"
            ):
                MAKERS[maker](comm)
        comm.Barrier()


def freed(comm):
    gone = compcoll.Comm(comm, "lossless")
    gone.Free()
    return gone


def freed_twice(comm):
    gone, other = compcoll.Comm(comm, "lossless"), compcoll.Comm(comm, "lossless")
    other.Free()
    assert gone.size == comm.size
    gone.Free()
    return gone


def freed_by_another_object(comm):
    gone = compcoll.Comm(comm, "lossless")
    compcoll.Comm.fromhandle(gone.handle).Free()
    return gone


def freed_after_using(comm):
    gone = compcoll.Comm(comm, "lossless")
    other = gone.using("raw")
    gone.Free()
    assert agrees(other) == (comm.size > 1)
    other.Free()
    return gone


def freed_with_its_origin(comm):
    origin = comm.Dup()
    gone = compcoll.Comm(origin, "lossless").using("raw")
    origin.Free()
    return gone


def freed_part(comm):
    ours = compcoll.Comm(comm, "lossless")
    gone = ours.Split(0)
    gone.Free()
    ours.Free()
    return gone


WAYS = [freed, freed_twice, freed_by_another_object, freed_after_using, freed_with_its_origin, freed_part]
CALLS = {
    "Allreduce": lambda c, x, y: c.Allreduce(x, y),
    "small Allreduce": lambda c, x, y: c.Allreduce(x[:1], y[:1]),
    "Allgather": lambda c, x, y: c.Allgather(x[:1], y),
    "Iallgather": lambda c, x, y: c.Iallgather(x[:1], y),
    "Bcast_init": lambda c, x, y: c.Bcast_init(x),
    "Scan": lambda c, x, y: c.Scan(x, y),
    "Barrier": lambda c, x, y: c.Barrier(),
    "Send": lambda c, x, y: c.Send(x, 0),
    "Isend": lambda c, x, y: c.Isend(x, 0),
    "Send_init": lambda c, x, y: c.Send_init(x, 0),
    "Recv": lambda c, x, y: c.Recv(x, 0),
    "Sendrecv": lambda c, x, y: c.Sendrecv(x, 0, 0, y, 0),
    "Probe": lambda c, x, y: c.Probe(),
    "Improbe": lambda c, x, y: c.Improbe(),
    "send": lambda c, x, y: c.send(x, 0),
    "bcast": lambda c, x, y: c.bcast(x),
    "allreduce": lambda c, x, y: c.allreduce(x),
    "Dup": lambda c, x, y: c.Dup(),
    "Idup": lambda c, x, y: c.Idup(),
    "Split": lambda c, x, y: c.Split(),
    "Create_cart": lambda c, x, y: c.Create_cart([c.origin.size]),
    "using": lambda c, x, y: c.using("raw"),
    "size": lambda c, x, y: c.size,
    "Set_name": lambda c, x, y: c.Set_name("x"),
    "Get_group": lambda c, x, y: c.Get_group(),
    "Get_attr": lambda c, x, y: c.Get_attr(MPI.TAG_UB),
    "Free": lambda c, x, y: c.Free(),
    "origin": lambda c, x, y: c.origin.size,
}
if MPI.get_vendor()[0] == "Open MPI":  # which ends the process, or does not check
    for name in ("Allgather", "Iallgather", "Bcast_init", "Probe", "Improbe"):
        del CALLS[name]


@pytest.mark.parametrize("way", WAYS)
def test_calls_on_what_was_freed_are_errors(comm, way):
    gone, x, y = way(comm), np.ones(N), np.ones(N)
    others = [comm.Dup() for _ in range(4)]  # one of them may get its handle
    for name, call in CALLS.items():
        with pytest.raises(MPI.Exception) as caught:
            call(gone, x, y)
        assert caught.value.Get_error_class() == MPI.ERR_COMM, name
    for other in others:
        other.Free()
