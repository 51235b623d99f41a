"""Persistent calls that send differences are exact, whatever happens to buffers between two starts."""

import internals
import numpy as np
import pytest
from common import BF16, bits, data, typed
from mpi4py import MPI

import compcoll
from compcoll import FrameError

N, STARTS = 70_001, 4
pytestmark = [
    pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="a single rank sends nothing"),
    pytest.mark.skipif(MPI.Get_version() < (4, 0), reason="MPI 3 has no persistent collectives"),
]


@pytest.fixture
def ours(comm):
    return compcoll.Comm(comm, codec="delta", min_nbytes=0)


def value(dtype, n: int, rank: int, start: int) -> np.ndarray:
    """Values of a rank, a few of which change with each start."""
    values = data(n, dtype, rank)
    words = values.view(f"u{np.dtype(dtype).itemsize}")
    for k in range(start):
        words[k :: 37 + rank] += np.uint8(1)
    return values


@pytest.mark.parametrize("dtype", [BF16, "f4", "f8", "i4"], ids=str)
def test_exact(comm, ours, agree, dtype):
    """Calls are exact although receivers overwrite results, and send little from the second start on."""
    size, rank = comm.size, comm.rank
    one, own = np.zeros(N, dtype), np.zeros(N, dtype)
    all_, mine, into = np.zeros(N * size, dtype), np.zeros(N * size, dtype), np.zeros(N * size, dtype)
    calls = [
        ours.Bcast_init(typed(one), 0),
        ours.Allgather_init(typed(own), typed(all_)),
        ours.Alltoall_init(typed(mine), typed(into)),
    ]
    sent = []
    for start in range(STARTS):
        ours.Barrier()
        one[:] = value(dtype, N, 0, start) if rank == 0 else np.array(start, dtype)
        own[:] = value(dtype, N, rank, start)
        mine[:] = np.concatenate([value(dtype, N, rank, start + peer) for peer in range(size)])
        all_[:], into[:] = np.array(7, dtype), np.array(9, dtype)
        reports = []
        for call in calls:
            call.Start()
            call.Wait()
            reports.append(ours.report)
        assert agree(bits(one) == bits(value(dtype, N, 0, start)))
        assert agree(bits(all_) == b"".join(bits(value(dtype, N, peer, start)) for peer in range(size)))
        assert agree(
            bits(into) == b"".join(bits(value(dtype, N, peer, start + rank)) for peer in range(size))
        )
        sent.append(reports[1])
    assert agree("delta" not in sent[0].codecs and set(sent[1].codecs) == {"delta"})
    assert agree(sent[1].wire_nbytes < sent[0].wire_nbytes / 3)
    assert agree(sent[1].base_nbytes >= N * size * np.dtype(dtype).itemsize)
    assert agree(sent[1].error_bound == 0)
    for call in calls:
        call.Free()


def test_other_calls_are_lossless(comm, ours, agree):
    """Calls that are not persistent or that reduce are lossless, and the report gives the reason."""
    values = data(N, "f4", 0)
    for _ in range(2):
        ours.Bcast(values, 0)
        assert agree(
            "delta needs a persistent call" in ours.report.reason and "delta" not in ours.report.codecs
        )
    total = np.empty_like(values)
    call = ours.Allreduce_init(values, total)
    for _ in range(2):
        call.Start()
        call.Wait()
        assert agree(
            "delta needs a persistent call" in ours.report.reason and "delta" not in ours.report.codecs
        )
    call.Free()
    if comm.rank == 0:
        ours.Send(values, 1)
    if comm.rank == 1:
        ours.Recv(total, 0)
    assert agree(comm.rank != 0 or "delta needs a persistent call" in ours.report.reason)
    assert agree(comm.rank != 1 or bits(total) == bits(values))


def test_damage(comm, ours, agree):
    """A receiver that has lost its base raises until the call is prepared again; no value is wrong."""
    last = comm.size - 1
    values = np.zeros(N, BF16)

    def damage(message: np.ndarray) -> None:
        if message.size > 90:
            message[90] ^= 0x10

    call, failed, wrong = ours.Bcast_init(typed(values), 0), [], False
    for start in range(STARTS):
        values[:] = value(BF16, N, 0, start) if comm.rank == 0 else np.array(3, BF16)
        if start == 1 and comm.rank == last:
            internals.set_recv_hook(damage)
        call.Start()
        try:
            call.Wait()
            wrong |= bits(values) != bits(value(BF16, N, 0, start))
        except (FrameError, MPI.Exception):
            failed.append(start)
        internals.set_recv_hook(None)
        ours.Barrier()
    assert agree(not wrong)
    assert agree(failed == ([1, 2, 3] if comm.rank == last else []))
    call.Free()
    call = ours.Bcast_init(typed(values), 0)
    call.Start()
    call.Wait()
    assert agree(bits(values) == bits(value(BF16, N, 0, STARTS - 1)) or comm.rank == 0)
    call.Free()


def test_strided_and_uneven(comm, ours, agree):
    """Persistent Allgatherv with a strided buffer and uneven counts sends differences and is exact."""
    counts = [N // (1 + i % 3) for i in range(comm.size)]
    spread = np.zeros((counts[comm.rank], 3), "f4")
    column = MPI.FLOAT.Create_vector(counts[comm.rank], 1, 3).Commit()
    into = np.zeros(sum(counts), "f4")
    call = ours.Allgatherv_init([spread, 1, column], [into, counts])
    column.Free()
    for start in range(STARTS):
        spread[:, 0] = value("f4", counts[comm.rank], comm.rank, start)
        into[:] = np.nan
        call.Start()
        call.Wait()
        want = b"".join(bits(value("f4", n, peer, start)) for peer, n in enumerate(counts))
        assert agree(bits(into) == want)
    assert agree(set(ours.report.codecs) == {"delta"})
    call.Free()


def ends(comm) -> tuple[int, int]:
    return (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size


def test_messages_are_lossless(comm, ours, agree):
    """Persistent messages are lossless, because neither end keeps a base."""
    behind, before = ends(comm)
    out, got = np.zeros(N, "f4"), np.zeros(N, "f4")
    send, receive = ours.Send_init(out, behind, 5), ours.Recv_init(got, before, 5)
    for start in range(3):
        out[:], got[:] = value("f4", N, comm.rank, start), 7
        receive.Start()
        send.Start()
        send.Wait()
        report = ours.report
        receive.Wait()
        assert agree("delta" not in report.codecs and report.accelerated)
        assert agree(bits(got) == bits(value("f4", N, before, start)))
    send.Free()
    receive.Free()
