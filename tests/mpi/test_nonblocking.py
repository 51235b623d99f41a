"""Nonblocking collectives against plain MPI."""

import time
from weakref import ref

import numpy as np
import pytest
from common import bits, data, fails, offsets
from mpi4py import MPI

import compcoll

N = 30_011


def near(got: np.ndarray, want: np.ndarray, size: int) -> bool:
    """True if two sums of ``size`` summands below 2 differ by no more than their roundings."""
    return bool(np.abs(got - want).max() <= 2 * size * size * np.finfo(got.dtype).eps * 2)


@pytest.fixture
def ours(comm):
    return compcoll.Comm(comm, codec="lossless", min_nbytes=0)


def test_moves_on_while_nobody_waits(comm, ours, agree):
    """A nonblocking call completes although its ranks do not enter MPI any more."""
    if not ours._marked.facts.multithreaded:
        pytest.skip("only calls drive the engine under less than MPI_THREAD_MULTIPLE")
    got = np.zeros(N * comm.size, "f4")
    sent = data(N * comm.size, "f4", comm.rank)
    want = np.zeros_like(got)
    comm.Alltoall(sent, want)
    ours.Ialltoall(sent, np.zeros_like(got)).Wait()
    request = ours.Ialltoall(sent, got)
    end = time.perf_counter() + 60
    while bits(got) != bits(want) and time.perf_counter() < end:
        time.sleep(0.01)
    assert agree(bits(got) == bits(want))
    request.Wait()


def test_derived_types_come_back_when_waited_for(comm, ours, agree):
    column = MPI.FLOAT.Create_vector(N, 1, 2).Commit()
    table = np.zeros((N, 2), "f4")
    want = data(N, "f4", 3)
    if comm.rank == 0:
        table[:, 0] = want
    ours.Ibcast([table, 1, column]).Wait()
    column.Free()
    assert agree(bits(table[:, 0].copy()) == bits(want) and not table[:, 1].any())


@pytest.mark.parametrize("call", ["Iallgather", "Irecv", "Recv"])
def test_reports_have_the_time_of_waiting(comm, ours, agree, call):
    """The report of a call that waits for a late rank 0 has that time as ``wait``."""
    if comm.size == 1 or not ours._marked.facts.multithreaded:
        pytest.skip("needs another rank, and MPI_THREAD_MULTIPLE")
    sent, got = data(N, "f4", comm.rank), np.zeros(N * comm.size, "f4")
    last = comm.size - 1  # on another node than rank 0, if there are several: MPI serves messages inside one
    comm.Barrier()
    if comm.rank == 0:
        time.sleep(0.3)
    if call == "Iallgather":
        ours.Iallgather(sent, got).Wait()
    elif comm.rank == 0:
        ours.Send(sent, last)
    elif comm.rank == last:
        ours.Irecv(got, 0).Wait() if call == "Irecv" else ours.Recv(got, 0)
    assert agree(comm.rank != last or 0 < ours.report.seconds["wait"] <= ours.report.seconds["total"])


def test_bounds_and_reports(comm, agree):
    ours = compcoll.Comm(comm, codec="szp:abs=1e-3", min_nbytes=0)
    mine = np.sin(np.arange(N, dtype="f4") / 50 + comm.rank)
    got = np.zeros(N * comm.size, "f4")
    want = np.zeros_like(got)
    ours.Iallgather(mine, got).Wait()
    comm.Allgather(mine, want)
    assert agree(np.abs(got - want).max() <= (1e-3 if comm.size == 1 else ours.report.error_bound))
    if comm.size > 1:
        assert ours.report.error_bound == pytest.approx(1e-3, rel=1e-3)
        assert ours.report.wire_nbytes < ours.report.raw_nbytes


def test_what_goes_to_mpi(comm, agree):
    """MPI carries small calls and other reductions, and other types are an error."""
    ours = compcoll.Comm(comm, codec="lossless")
    mine, got, want = np.arange(9.0) * comm.rank, np.zeros(9), np.zeros(9)
    before = ours.calls_accelerated
    for op in (MPI.MAX, MPI.SUM):
        ours.Iallreduce(mine, got, op).Wait()
        comm.Allreduce(mine, want, op)
        assert agree((got == want).all())
    big, most = np.full(1 << 20, comm.rank, "f4"), np.zeros(1 << 20, "f4")
    ours.Iallreduce(big, most, MPI.MAX).Wait()
    assert agree((most == comm.size - 1).all())
    letters = np.array(["abc"] * 9, "S3") if comm.rank == 0 else np.zeros(9, "S3")
    with pytest.raises(KeyError):
        ours.Ibcast(letters)
    assert ours.calls_accelerated == before
    assert not ours.report.accelerated


def test_a_strict_communicator_says_what_fell_back(comm, agree):
    ours = compcoll.Comm(comm, codec="zfp:rate=8", min_nbytes=0, strict=True)
    if comm.size == 1:
        pytest.skip("a single rank sends nothing")
    mine, got = np.full(N, np.nan, "f4"), np.zeros(N * comm.size, "f4")
    request = ours.Iallgather(mine, got)
    with fails("FALLBACK", "zfp:rate=8 cannot carry"):
        request.Wait()
    assert agree(np.isnan(got).all())


def are_gone(arrays, ours) -> bool:
    """True if no array is referenced on any rank, once the engine's thread has released them."""
    some, total = np.ones((2, 5000))
    for _ in range(30):
        ours.Iallreduce(some, total).Wait()
        if ours.allreduce(all(array() is None for array in arrays), MPI.LAND):
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("planned", [True, False])
@pytest.mark.parametrize("name", ["Iallreduce", "Ialltoall", "Ialltoallv", "Iallgather", "Ireduce_scatter"])
def test_buffers_are_let_go_of_at_the_end(ours, name, planned):
    """Buffers are released when their call ends, even if its request is still referenced."""
    size, kept = ours.size, []
    for _ in range(3):
        a, b = np.ones(size * 1000), np.ones(size * 1000 * (size if name == "Iallgather" else 1))
        kept += map(ref, (a, b))
        counts = [1000] * size
        args = {"Ialltoallv": ([a, counts], [b, counts]), "Ireduce_scatter": (a, b[:1000], counts)}
        specs = (a, b) if planned else ([a, MPI.DOUBLE], [b, MPI.DOUBLE])
        request = getattr(ours, name)(*args.get(name, specs))
        request.Wait()
        del a, b, args, specs
    assert are_gone(kept, ours)
    del request


@pytest.mark.skipif(MPI.COMM_WORLD.size < 3, reason="needs two ranks beside one whose messages are all large")
def test_pairs_in_place_that_leave_mpi_nothing_on_one_rank(comm, nodes_of_one, agree):
    """Ialltoallv in place is right if one rank has nothing but large messages.

    Open MPI mixes up later calls if a rank has only counts of zero.
    """
    fresh = comm.Dup()
    ours, rank, size = compcoll.Comm(fresh, "lossless", min_nbytes=1000), comm.rank, comm.size
    counts = np.full((size, size), 5)
    counts[0, :] = counts[:, 0] = 4000
    np.fill_diagonal(counts, 0)
    mine = counts[rank].tolist()
    displs = offsets(mine)
    for step in range(4):
        got = np.full(sum(mine), 10.0 * rank + step)
        ours.Ialltoallv(MPI.IN_PLACE, [got, mine, displs, MPI.DOUBLE]).Wait()
        want = np.repeat([10.0 * r + step for r in range(size)], mine)
        assert agree((got == want).all())
    fresh.Free()
