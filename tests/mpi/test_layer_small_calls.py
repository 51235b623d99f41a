"""Small calls, and calls that were declined before, go straight to MPI and are still reported."""

import numpy as np
import pytest
from calls import check, collectives
from common import BF16, bits, data, fails, offsets, typed
from mpi4py import MPI

import compcoll
from compcoll.comm import prepare
from compcoll.engine import _engine
from compcoll.policy import trial

many = pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="needs two ranks")
SMALL, LARGE = 50, 50_000


@pytest.fixture
def ours(comm):
    return compcoll.Comm(comm, "lossless", min_nbytes=1000)


@many
def test_small_calls_are_mpis_and_reported(comm, ours, agree):
    for name, call in collectives(comm.rank, comm.size, SMALL).items():
        for _ in range(2):  # the second call may be a remembered one
            check(comm, ours, agree, call, "i4")
            report = ours.report
            sound = (report.op, report.accelerated) == (call.name, False) and "= 1000" in report.reason
            assert agree(sound), name
    if comm.rank == 0:
        for peer in range(1, comm.size):
            ours.Recv(np.zeros(SMALL), peer)
    else:
        ours.Send(np.zeros(SMALL), 0)
    assert agree(comm.rank == 0 or (ours.report.op == "Send" and "= 1000" in ours.report.reason))
    assert agree(ours.calls_accelerated == 0)


def test_subclasses_are_asked(comm, agree):
    class Counting(compcoll.Comm):
        seen = 0

        def Bcast(self, buf, root=0):
            self.seen += 1
            super().Bcast(buf, root)

    ours = Counting(comm)
    got = data(SMALL, "f4", comm.rank)
    ours.Bcast(got)
    ours.Dup().Free()
    assert agree(ours.seen == 1 and bits(got) == bits(data(SMALL, "f4", 0)))


@many
def test_strict_is_content_with_small_calls(comm, agree):
    ours = compcoll.Comm(comm, "lossless", min_nbytes=1000, strict=True)
    between = data(1000 // 8 * comm.size, "f4", 0)  # more than the limit in all, but each message is less
    for op in (MPI.SUM, MPI.MAX):
        ours.Allreduce(between, between.copy(), op)
        assert agree(not ours.report.accelerated)
    with fails("FALLBACK", "SUM"):
        ours.Allreduce(data(LARGE, "f4", 0), np.zeros(LARGE, "f4"), MPI.MAX)


@pytest.fixture
def declining(comm, nodes_of_one, monkeypatch):
    """Communicator on a network not worth compressing for, whose calls are reconsidered often."""
    monkeypatch.setattr(trial, "WARM", 5)
    monkeypatch.setattr(trial, "BLOCK_SECONDS", 0.0)
    monkeypatch.setattr(trial, "LOOKS", tuple(range(5, 100, 5)))
    monkeypatch.setattr(trial, "GAIN", 0.0)
    fresh = comm.Dup()
    yield compcoll.Comm(fresh, codec="auto", min_nbytes=1000)
    fresh.Free()


@many
def test_declined_calls_are_counted_alike(comm, declining, agree):
    """Declined calls are counted alike and decided anew together, if only some ranks' arguments change."""
    mine, got = data(LARGE, "f4", comm.rank), np.zeros((comm.size, LARGE), "f4")
    for i in range(23):
        row = MPI.FLOAT.Create_contiguous(LARGE).Commit()
        declining.Allgather(mine, [got, row] if comm.rank % 2 and i % 3 else got)
        row.Free()
        assert agree("plain MPI" in declining.report.reason and not declining.report.accelerated)
    (kind,) = declining._marked.advisor._kinds.values()
    assert agree(len(set(comm.allgather(kind.window.calls))) == 1)
    want = np.stack([data(LARGE, "f4", r) for r in range(comm.size)])
    assert agree(bits(got) == bits(want))


@many
def test_only_calls_alike_are_remembered(comm, declining, agree, monkeypatch):
    mine, got, asked = data(LARGE, "f4", comm.rank), np.zeros(LARGE, "f4"), []

    def noted(description):
        asked.append(description.nbytes)
        prepare.prepare(description)

    declining.Allreduce(mine, got)
    monkeypatch.setattr(_engine, "_prepare", noted)
    declining.Allreduce(mine, got)
    declining.Allreduce([mine.copy(), MPI.FLOAT], [got.copy(), LARGE, MPI.FLOAT])
    assert agree(not asked and declining.report.op == "Allreduce")
    declining.Allreduce(mine, got, op=MPI.MAX)
    assert agree(not asked and "SUM" in declining.report.reason)
    declining.Allreduce(mine.astype("f8"), got.astype("f8"))
    assert agree(asked == [8 * LARGE // comm.size])


@many
@pytest.mark.parametrize("n", [SMALL, LARGE])
def test_bfloat16(comm, declining, agree, n):
    for _ in range(3):
        mine, got = data(n, BF16, comm.rank), np.zeros((comm.size, n), BF16)
        declining.Allgather(typed(mine), typed(got))
        assert agree(bits(got[-1]) == bits(data(n, BF16, comm.size - 1)))
        declining.Allreduce(typed(np.ones(n, BF16)), typed(mine))
        assert agree((mine == comm.size).all() and not declining.report.accelerated)


def forms_of(array, counts, displs, way: int):
    """Argument in one of mpi4py's four forms."""
    return [
        [array, (counts, displs)],
        (array, (np.array(counts), np.array(displs, "i8"))),
        [array, counts, displs, MPI.FLOAT],
        [array, (tuple(counts), displs), "f"],
    ][way]


@many
def test_repeated_calls_of_pairs(comm, ours, agree):
    """Repeated calls of pairs are right while counts, displacements, memory and forms change."""
    rng, size, rank = np.random.default_rng(1), comm.size, comm.rank
    matrices = [rng.choice([0, 10, 3000, 9001], (size, size)) for _ in range(3)]
    arrays = [data(10_000 * size, "f4", rank + i) for i in range(2)]
    known = 0
    for _ in range(60):
        which, way, gap, from_ = rng.integers([3, 4, 2, 2])
        sends, recvs = matrices[which][rank].tolist(), matrices[which][:, rank].tolist()
        out = forms_of(arrays[from_], sends, offsets(sends, gap), way)
        got, want = np.full((2, 10_000 * size), -1, "f4")
        comm.Alltoallv(out, forms_of(want, recvs, offsets(recvs, gap), 0))
        ours.Alltoallv(out, forms_of(got, recvs, offsets(recvs, gap), way))
        assert agree(bits(got) == bits(want))
        known += ours.report.accelerated
        counts = matrices[which][0].tolist()
        root, mine = int(which) % size, arrays[from_][: counts[rank]]
        got, want = np.full((2, 10_000 * size), -1, "f4")
        comm.Gatherv(mine, forms_of(want, counts, offsets(counts, gap), 0), root)
        ours.Gatherv(mine, forms_of(got, counts, offsets(counts, gap), way) if rank == root else None, root)
        assert agree(bits(got) == bits(want))
        comm.Scatterv(forms_of(arrays[from_], counts, offsets(counts), 0), want[: counts[rank]], root)
        ours.Scatterv(forms_of(arrays[from_], counts, offsets(counts), way), got[: counts[rank]], root)
        assert agree(bits(got) == bits(want))
    assert agree(known > 0)


@many
def test_a_call_of_pairs_that_cannot_begin_at_once(comm, ours, agree):
    """A repeated Alltoallv is right with memory that is not contiguous as before, or in place."""
    size, n = comm.size, 9001
    counts, square = [n] * size, data(n * size, "f4", comm.rank).reshape(n, size)
    want, got = np.zeros((2, n * size), "f4")
    for send in (square, np.asfortranarray(square), square):
        comm.Alltoallv([send, counts], [want, counts])
        ours.Alltoallv([send, counts], [got, counts])
        assert agree(bits(got) == bits(want) and ours.report.accelerated)
    comm.Alltoallv(MPI.IN_PLACE, [want, counts])
    ours.Alltoallv(MPI.IN_PLACE, [got, counts])
    assert agree(bits(got) == bits(want))


@many
@pytest.mark.parametrize(("codec", "n"), [("lossless", SMALL), ("none", LARGE)])
def test_the_error_of_a_sum_by_mpi_is_not_known(comm, agree, codec, n):
    ours, mine, got = compcoll.Comm(comm, codec, min_nbytes=1000), data(n, "f4", comm.rank), np.zeros(n, "f4")
    for call in (
        lambda: ours.Allreduce(mine, got),
        lambda: ours.Iallreduce(mine, got).Wait(),
        lambda: ours.Reduce(mine, got),
    ):
        call()
        assert agree(not ours.report.accelerated and ours.report.error_bound is None)
    ours.Bcast(got)
    assert agree(not ours.report.accelerated and ours.report.error_bound == 0)
