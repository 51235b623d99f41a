"""Requests of nonblocking and persistent calls, many at once, beside MPI's own requests."""

import gc
import sys
import threading
from collections import defaultdict
from queue import Queue
from threading import Thread

import numpy as np
import pytest
from common import Unhooked, bits, data
from mpi4py import MPI

import compcoll
from compcoll import Policy, Rule
from compcoll.codecs import Codec, registry
from compcoll.engine import _engine

N = 9001
pytestmark = pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="needs two ranks")
threaded = pytest.mark.skipif(MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="MPI lets one thread call it")


@pytest.fixture
def ours(comm):
    """Communicator whose messages have several chunks."""
    return compcoll.Comm(comm, policy=Policy("lossless", min_nbytes=0, rules=(Rule(chunk_nbytes=16384),)))


def ring(comm):
    return (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size


class Started:
    """One call: its requests, its receive buffer, and the values that must arrive."""

    def __init__(self, kind: int, comm, plain, seed: int, tag: int):
        """Begin a call; ``plain`` is mpi4py's communicator; ``kind`` and ``seed`` are equal on all ranks."""
        size, rank = comm.size, comm.rank
        values = self.values = [
            data(N * size, "i4", 7 * seed + p) for p in range(size)
        ]  # mpi4py keeps no reference to them
        mine, root, (before, behind) = values[rank], seed % size, ring(comm)
        self.got = np.zeros(N * size, "i4")
        got, first = self.got, self.got[:N]
        self.requests = []
        if kind == 0:
            first[:] = mine[:N]
            self.requests = [comm.Ibcast(first, root)]
            self.want = values[root][:N]
        elif kind == 1:
            self.requests = [comm.Ialltoall(mine, got)]
            self.want = np.concatenate([v[rank * N : (rank + 1) * N] for v in values])
        elif kind == 2:
            self.requests = [comm.Iallreduce(mine[:N], first)]
            self.want = sum(v[:N] for v in values)
        elif kind == 3:
            counts = [N] * size
            self.requests = [comm.Ialltoallv([mine, counts], [got, counts])]
            self.want = np.concatenate([v[rank * N : (rank + 1) * N] for v in values])
        elif kind == 4:
            self.requests = [comm.Iallgather(mine[:N], got)]
            self.want = np.concatenate([v[:N] for v in values])
        elif kind == 5:
            self.requests = [comm.Irecv(got, before, tag), comm.Isend(mine, behind, tag)]
            self.want = values[before]
        elif kind == 6:  # MPI's own
            self.requests = [plain.Irecv(got, before, tag), plain.Isend(mine, behind, tag)]
            self.want = values[before]
        else:
            self.requests = [comm.Irecv(first, before, tag), comm.Issend(mine[:N], behind, tag)]
            self.want = values[before][:N]

    @property
    def right(self) -> bool:
        return bits(self.got[: self.want.size]) == bits(self.want)


def finish(requests: list, rng) -> None:
    """Wait for requests by one function of MPI after the other."""
    left = [requests[i] for i in rng.permutation(len(requests))]
    while left:
        how = rng.integers(7)
        if how == 0:
            left.pop().Wait()
        elif how == 1:
            left.pop(MPI.Request.Waitany(left))
        elif how == 2:
            done = MPI.Request.Testsome(left) or []
            left = [request for i, request in enumerate(left) if i not in done]
        elif how == 3:
            done, left = left[-3:], left[:-3]
            MPI.Request.Waitall(done)
        elif how == 4 and left[0].Test():
            left.pop(0)
        elif how == 5 and MPI.Request.Testall(left[-2:]):
            left = left[:-2]
        elif how == 6:
            done = MPI.Request.Waitsome(left)
            left = [request for i, request in enumerate(left) if i not in done]


def in_two_threads(run) -> None:
    """Call ``run(0)`` and ``run(1)`` in threads that take turns often."""
    threads, interval = [Thread(target=run, args=[i]) for i in (0, 1)], sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)


@threaded
@pytest.mark.parametrize("seed", range(3))
def test_many_on_three_communicators_from_two_threads(comm, ours, agree, seed):
    """Requests of two threads complete, with a communicator each for collectives and one for messages."""
    several = [compcoll.Comm(comm.Dup(), "lossless", min_nbytes=0), ours, ours.Dup()]
    for one in several:
        one.Alltoallv(np.zeros(comm.size), np.zeros(comm.size))
    right = [False, False]

    def run(thread: int) -> None:
        plan, rng = np.random.default_rng([seed, thread]), np.random.default_rng([seed, thread, comm.rank])
        started = []
        for i, kind in enumerate(plan.integers(8, size=32)):
            where = several[thread if kind < 5 else 2]
            started.append(Started(kind, where, MPI.Intracomm(comm), 100 * thread + i, 100 * thread + i))
        finish([request for one in started for request in one.requests], rng)
        right[thread] = all(one.right for one in started)

    in_two_threads(run)
    assert agree(all(right))
    for one in (several[0], several[2]):
        one.Free()


@threaded
def test_statuses_of_receives_in_two_threads(comm, agree):
    """Statuses are right if a thread tests receives while another thread fills their statuses."""
    ours = compcoll.Comm(comm, "lossless", min_nbytes=0)
    before, behind = ring(comm)
    n, wrong = 8192, []

    def run(tag: int) -> None:
        sent = np.cumsum(np.ones(n, "f4"))
        for _ in range(60):
            arriving = [ours.Irecv(np.zeros(n, "f4"), before, tag) for _ in range(16)]
            sends = [ours.Isend(sent, behind, tag) for _ in arriving]
            for request in arriving:
                request.Wait(status := MPI.Status())
                wrong.extend([status] * (status.Get_count(MPI.FLOAT) != n))
            MPI.Request.Waitall(sends)

    in_two_threads(run)
    assert agree(not wrong)


@threaded
def test_handles_that_mpi_gives_out_again_at_once(comm, agree):
    """Calls are counted and recorded although MPI reuses handles of completed ones in another thread."""
    ours = compcoll.Comm(comm, "lossless", min_nbytes=0)
    before, behind = ring(comm)
    sent, calls, records = np.arange(1024.0), 2 * 6 * 2 * 300, []

    def run(tag: int) -> None:
        for _ in range(6):
            arriving = [ours.Irecv(np.zeros(1024), before, tag) for _ in range(300)]
            MPI.Request.Waitall(arriving + [ours.Isend(sent, behind, tag) for _ in arriving])

    _engine.record_calls(lambda: records.extend(_engine.take_records()))
    in_two_threads(run)
    _engine.end_records()
    assert agree(ours.calls_accelerated == calls)
    assert agree(len(records + _engine.take_records()) == calls)


def test_more_than_there_are_tags_for(comm, ours, agree):
    """Calls whose tags are in use wait for the calls that use them, and all results are right."""
    started = [Started(i % 3, ours, comm, i, 0) for i in range(150)]
    requests = [request for one in started for request in one.requests]
    MPI.Request.Waitall(requests[::-1])
    assert agree(all(one.right for one in started))


def test_order_of_messages(comm, ours, agree):
    """Sends of all kinds under one tag are received in order, in whatever order they are waited for."""
    before, behind = ring(comm)
    sizes = [3 * N, 5, N, 2 * N, 1, 3 * N]
    sends = [data(n, "f4", 10 * k + comm.rank) for k, n in enumerate(sizes)]
    methods = [ours.Isend, ours.Issend, MPI.Intracomm(ours).Isend]
    gots = [np.zeros(3 * N, "f4") for _ in sizes]
    receives = [ours.Irecv(got, before, 3) for got in gots]
    requests = [methods[k % 3](send, behind, 3) for k, send in enumerate(sends)]
    MPI.Request.Waitall([*requests[::-1], *receives])
    right = (
        bits(got[:n]) == bits(data(n, "f4", 10 * k + before))
        for k, (n, got) in enumerate(zip(sizes, gots, strict=True))
    )
    assert agree(all(right))


def test_a_large_send_does_not_wait_for_its_receiver(comm, ours, agree):
    before, behind = ring(comm)
    n = 1 << 18
    requests = [ours.Isend(data(n, "f4", comm.rank + k), behind, k) for k in range(4)]
    synchronous = ours.Issend(data(n, "f4", comm.rank + 4), behind, 4)
    comm.Barrier()
    assert agree(not synchronous.Test())
    comm.Barrier()
    gots = [np.zeros(n, "f4") for _ in range(5)]
    for k in (4, 2, 0, 1, 3):
        ours.Recv(gots[k], before, k)
    MPI.Request.Waitall([*requests, synchronous])
    assert agree(all(bits(got) == bits(data(n, "f4", before + k)) for k, got in enumerate(gots)))
    assert ours.report.accelerated


def test_communicators_freed_in_between(comm, agree):
    """Pending calls complete after their communicators are freed and their arrays are dropped."""
    before, behind = ring(comm)
    for last in (False, True):
        ours = compcoll.Comm(
            comm.Dup(), policy=Policy("lossless", min_nbytes=0, rules=(Rule(chunk_nbytes=16384),))
        )
        family = ours.Dup() if last else ours
        n, got, whole = 50 * N, np.zeros(50 * N, "f4"), np.zeros(N * comm.size, "f4")
        requests = [
            family.Irecv(got, before, 1),
            family.Isend(data(n, "f4", comm.rank), behind, 1),
            family.Ialltoall(data(N * comm.size, "f4", 7), whole),
        ]
        family.Free()
        if last:
            ours.Free()
        del ours, family
        gc.collect()
        MPI.Request.Waitall(requests)
        want = np.tile(data(N * comm.size, "f4", 7)[comm.rank * N : (comm.rank + 1) * N], comm.size)
        assert agree(bits(got) == bits(data(n, "f4", before)) and bits(whole) == bits(want))


def test_requests_freed_before_their_end(comm, ours, agree):
    """A send whose request is freed still arrives."""
    before, behind = ring(comm)
    sent = [data(20 * N, "f4", comm.rank) for _ in range(3)]
    for one in sent:
        ours.Isend(one, behind, 2).Free()
    for _ in range(3):
        got = np.zeros(20 * N, "f4")
        ours.Recv(got, before, 2)
        assert agree(bits(got) == bits(data(20 * N, "f4", before)))


def test_a_status_before_the_end(comm, ours, agree):
    before, behind = ring(comm)
    got, status = np.zeros(N, "f4"), MPI.Status()
    request = ours.Irecv(got, MPI.ANY_SOURCE, MPI.ANY_TAG)
    assert agree(not request.Get_status())
    comm.Barrier()
    sent = ours.Isend(data(N, "f4", comm.rank), behind, 8)
    while not request.Get_status(status):
        pass
    assert agree((status.source, status.tag, status.Get_count(MPI.FLOAT)) == (before, 8, N))
    assert agree(bits(got) == bits(data(N, "f4", before)))
    MPI.Request.Waitall([request, sent])
    assert agree(request == MPI.REQUEST_NULL)


def test_the_report_of_what_was_received(comm, agree):
    ours = compcoll.Comm(comm, codec="zfp:rate=8", min_nbytes=0)
    before, behind = ring(comm)
    sent, got, want = data(N, "f4", comm.rank), np.zeros(N, "f4"), data(N, "f4", before)
    count = ours.calls_accelerated
    arriving = ours.Irecv(got, before)
    ours.Send(sent, behind)
    arriving.Wait()
    assert agree(ours.report.op == "Recv" and ours.calls_accelerated == count + 2)
    assert agree(0 < np.abs(got - want).max() <= ours.report.error_bound)
    ours.Isendrecv(sent, behind, recvbuf=got, source=before).Wait()
    assert agree(ours.report.op == "Sendrecv" and ours.report.raw_nbytes == sent.nbytes)
    assert agree(0 < np.abs(got - want).max() <= ours.report.error_bound)
    plain = ours.Irecv(got, before)
    Unhooked(ours).Send(sent, behind)
    plain.Wait()
    assert agree(bits(got) == bits(want))


class Counted(Codec):
    """Codec of another package that counts its decoded blocks by thread."""

    name = "counted"
    lossless = True
    local, calls = threading.local(), Queue()

    def encode_payload(self, src, dst):
        dst[: src.nbytes] = src.reshape(-1).view(np.uint8)
        return src.nbytes, 0.0, (0, 0)

    def decode_payload(self, info, payload, dst):
        dst.reshape(-1).view(np.uint8)[:] = payload
        self.local.calls = getattr(self.local, "calls", 0) + 1
        self.calls.put((threading.get_ident(), self.local.calls))
        return 0


@threaded
def test_the_progress_thread_keeps_its_state_of_python(comm, agree, monkeypatch):
    """The progress thread keeps one Python state.

    A state made anew for each callback would lose thread-local values, and leave memory behind.
    """
    monkeypatch.setitem(registry._known, "counted", Counted)
    ours = compcoll.Comm(comm, "counted", min_nbytes=0)
    mine, everything, seen = data(N, "f4", comm.rank), np.zeros(N * comm.size, "f4"), defaultdict(list)
    for _ in range(8):
        request = ours.Iallgather(mine, everything)
        thread, count = Counted.calls.get(timeout=30)  # before any wait for the request
        seen[thread].append(count)
        assert thread != threading.get_ident()
        request.Wait()
        while not Counted.calls.empty():
            thread, count = Counted.calls.get()
            seen[thread].append(count)
    assert agree(all(counts == list(range(1, len(counts) + 1)) for counts in seen.values()))
