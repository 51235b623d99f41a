"""Calls compared between ranks: matching calls complete, and others are an error on every rank."""

import numpy as np
import pytest
from common import bits, data, fails, vspec
from mpi4py import MPI

import compcoll
from compcoll.core import environment
from compcoll.engine import _engine

N = 3000
WORLD = MPI.COMM_WORLD
LAST = WORLD.size - 1
needs_two = pytest.mark.skipif(WORLD.size < 2, reason="one rank agrees with itself")


@pytest.fixture(autouse=True)
def checking(monkeypatch):
    monkeypatch.setenv("COMPCOLL_CHECK", "1")
    yield
    monkeypatch.undo()
    _engine.compare_calls(300.0 if environment.checks(default=False) else 0.0)


@pytest.fixture
def ours(comm):
    return compcoll.Comm(comm, "lossless", min_nbytes=0)


def message(call) -> str:
    """Text of the error that a call raises."""
    with fails("MISMATCH") as error:
        call()
    return str(error.value)


def counts(short: bool) -> list[int]:
    return [N - (short and rank == LAST) for rank in range(WORLD.size)]


#: The last rank's call, the other ranks' call, and the description of the former in the error.
WRONG = {
    "operation": (lambda c, a, b: c.Allgather(a, b), lambda c, a, b: c.Bcast(a), "Allgather of 3000 float32"),
    "count": (lambda c, a, b: c.Bcast(a[1:]), lambda c, a, b: c.Bcast(a), "Bcast of 2999 float32"),
    "type": (lambda c, a, b: c.Bcast(a.view("i4")), lambda c, a, b: c.Bcast(a), "Bcast of 3000 int32"),
    "root": (lambda c, a, b: c.Bcast(a, 1), lambda c, a, b: c.Bcast(a), "Bcast of 3000 float32 from root 1"),
    "reduction": (
        lambda c, a, b: c.Allreduce(a, a.copy(), MPI.MAX),
        lambda c, a, b: c.Allreduce(a, a.copy()),
        "Allreduce of 3000 float32 with MAX",
    ),
    "unchanged by us": (
        lambda c, a, b: c.Exscan(a, a.copy()),
        lambda c, a, b: c.Barrier(),
        "Exscan of 3000 float32 with SUM",
    ),
    "nonblocking": (
        lambda c, a, b: c.Ibcast(a),
        lambda c, a, b: c.Bcast(a),
        "Ibcast of 3000 float32 from root 0",
    ),
    "objects": (
        lambda c, a, b: c.bcast(1, LAST),
        lambda c, a, b: c.bcast(1),
        f"Bcast of 1 int64 from root {LAST}",
    ),
    "communicators": (lambda c, a, b: c.Dup(), lambda c, a, b: c.Split(), "Comm_dup"),
}


@needs_two
@pytest.mark.parametrize("case", WRONG)
def test_the_odd_one_is_named_on_all_ranks(ours, agree, case):
    odd, usual, said = WRONG[case]
    a, b = data(N, "f4", ours.rank), np.empty(ours.size * N, "f4")
    if case == "nonblocking":  # raised when the call completes
        comm = compcoll.Comm(MPI.Intracomm(ours), "lossless", min_nbytes=1)
        if ours.rank == LAST:
            request = odd(comm, a, b)
            assert "Ibcast" in message(request.Wait)
        else:
            assert f"rank {LAST} called {said}" in message(lambda: usual(comm, a, b))
        return
    text = message(lambda: (odd if ours.rank == LAST else usual)(ours, a, b))
    assert agree(f"rank {LAST} called {said}" in text)
    assert agree(("the others" if ours.size > 2 else "rank 0") + " called" in text)
    ours.Bcast(a)  # the wrong call had not begun
    assert agree(bits(a) == bits(data(N, "f4", 0)))


PAIRS = {
    "Gatherv": (lambda c, a, b, n: c.Gatherv(a, vspec(b, n)), f"rank {LAST} sends rank 0 3000 float32"),
    "Scatterv": (lambda c, a, b, n: c.Scatterv(vspec(b, n), a), f"rank 0 sends rank {LAST} 2999 float32"),
    "Alltoallv": (
        lambda c, a, b, n: c.Alltoallv(vspec(b, counts(False)), vspec(b.copy(), n)),
        f"rank {LAST} sends rank 0 3000 float32, which expects 2999",
    ),
}


@needs_two
@pytest.mark.parametrize("op", PAIRS)
def test_pairs_of_ranks_have_to_agree(ours, agree, op):
    call, said = PAIRS[op]
    a, b = data(N, "f4", ours.rank), np.zeros(ours.size * N, "f4")
    assert agree(said in message(lambda: call(ours, a, b, counts(ours.rank == 0))))
    call(ours, a, b, counts(False))


@needs_two
def test_what_is_sent_may_be_read_only(ours, agree):
    a, b, n = data(N, "f4", ours.rank), np.zeros(N, "f4"), N // ours.size
    a.flags.writeable = False
    ours.Allreduce(a, b)
    ours.Bcast(a if ours.rank == 0 else b)
    assert agree(bits(b) == bits(data(N, "f4", 0)) or ours.rank == 0)
    ours.Scatter(a[: n * ours.size], MPI.IN_PLACE if ours.rank == 0 else b[:n])
    ours.Reduce(a, a if ours.rank else b)
    assert agree(bits(a) == bits(data(N, "f4", ours.rank)))


def test_what_is_right_goes_through(ours, agree):
    a, rank, size = data(N, "f4", ours.rank), ours.rank, ours.size
    b, parts = np.empty(size * N, "f4"), [data(N, "f4", r) for r in range(size)]
    ours.Allgather(a, recvbuf=b)
    assert agree(bits(b) == bits(np.concatenate(parts)))
    ours.Gatherv(a, vspec(b, counts(False)) if rank == 0 else None)
    ours.Scatter(b if rank == 0 else None, a if rank else MPI.IN_PLACE)
    assert agree(bits(a) == bits(parts[rank]))
    ours.Reduce(MPI.IN_PLACE if rank == 0 else a, b[:N] if rank == 0 else None)
    ours.Alltoall(MPI.IN_PLACE, b)
    ours.Reduce_scatter(b, a, counts(False))
    ours.Bcast([a, MPI.FLOAT] if rank else [a, N, MPI.FLOAT.Create_contiguous(1).Commit()])
    sent = np.zeros((0 if rank else 1) * size, "f8" if rank else "i4")  # an empty block has no type
    ours.Gatherv(sent, [np.empty(size, "i4"), [size] + [0] * (size - 1)] if rank == 0 else None)
    requests = [ours.Iallgather(a, np.empty(size * N, "f4")) for _ in range(5)]
    MPI.Request.Waitall(requests)
    assert agree(ours.allreduce(rank) == size * (size - 1) // 2)
    assert agree(ours.reduce(1, lambda a, b: a + b) == (size if rank == 0 else None))
    duplicate = ours.Dup()
    duplicate.Barrier()
    duplicate.Free()
    half = ours.Split(rank % 2)
    half.Barrier()
    half.Free()


@needs_two
def test_a_rank_that_does_not_come(comm, monkeypatch):
    monkeypatch.setenv("COMPCOLL_TIMEOUT", "0.5")
    ours = compcoll.Comm(comm, "lossless", min_nbytes=0)
    if ours.rank != LAST:
        assert f"rank {LAST} has not come within 0.5 s" in message(ours.Barrier)
        with fails("BROKEN", "is in an error state"):
            ours.Barrier()
    comm.Barrier()


@needs_two
def test_a_frame_that_fits_where_its_message_does_not(comm):
    ours = compcoll.Comm(comm, "lossless", min_nbytes=1 << 14)
    if ours.rank == 0:
        ours.Send(np.zeros(1 << 13), 1)
    elif ours.rank == 1:
        with pytest.raises(MPI.Exception, match=r"[Tt]runcate"):
            ours.Irecv(np.empty(1000), 0).Wait()
    comm.Barrier()


@needs_two
@pytest.mark.parametrize("n", [10, 20000])
def test_messages_of_another_type(ours, comm, n):
    if ours.rank == 0:
        ours.Send(np.zeros(2 * n + 1, "f4"), 1)
        ours.Send(np.zeros(n, "f4"), 1)
        ours.Send(np.zeros(n, "f4"), 1)
    elif ours.rank == 1:
        with fails("MISMATCH", "rank 0 has sent"):
            ours.Recv(np.empty(3 * n, "f8"), 0)
        ours.Recv(np.empty(n, "f4"), 0)
        ours.Recv(np.empty(4 * n, "u1"), 0)  # bytes match every type
    comm.Barrier()


@needs_two
@pytest.mark.parametrize("odd", ["count", "type"])
def test_typed_messages_of_each_pair_are_compared(ours, agree, odd):
    a, b = data(N, "f8", ours.rank), np.zeros(ours.size * N)
    last = ours.rank == LAST
    send = [MPI.FLOAT if last and odd == "type" else MPI.DOUBLE] * ours.size
    counts = [2 - (last and odd == "count")] * ours.size
    places = [8 * N * rank for rank in range(ours.size)]
    text = message(
        lambda: ours.Alltoallw(
            [a, counts, [0] * ours.size, send], [b, [2] * ours.size, places, [MPI.DOUBLE] * ours.size]
        )
    )
    expected = {"count": "1 float64, which expects 2", "type": "2 float32, which expects 2 float64"}[odd]
    assert agree(f"Alltoallw: rank {LAST} sends rank 0 {expected}" in text)
