"""Probes of messages that may be compressed: right statuses, and no message removed or out of order."""

import pickle
from itertools import product
from threading import Thread
from time import sleep

import numpy as np
import pytest
from common import BF16, Unhooked, bits, data, typed
from mpi4py import MPI

import compcoll
from compcoll import Policy, Rule

N, TAG = 20_000, 6
#: Odd lengths of plain messages; the last two are also lengths of first messages.
LENGTHS = [25, 1001, 1101, 1024 + 7 * 128 + 77]
pytestmark = pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="needs two ranks")
threaded = pytest.mark.skipif(MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="MPI lets one thread call it")
#: MPI 3 has no Isendrecv_replace.
HAS_ISENDRECV = MPI.Get_version() >= (4, 0)


@pytest.fixture
def ours(comm):
    return compcoll.Comm(comm, "lossless", min_nbytes=4096)


@pytest.fixture
def record():
    """Datatype of 5 bytes that MPI alone can unpack."""
    parts = MPI.Datatype.Create_struct([1, 1], [0, 4], [MPI.FLOAT, MPI.CHAR])
    record = parts.Create_resized(0, 5).Commit()
    yield record
    record.Free()
    parts.Free()


def plain(nbytes: int) -> np.ndarray:
    return np.arange(nbytes, dtype="u4").astype("u1")


def improbe(comm, *args):
    while (message := comm.Improbe(*args)) is None:
        pass
    return message


def iprobe(comm, *args):
    while not comm.Iprobe(*args):
        pass


MATCHED = {
    "Mprobe Recv": lambda c, a, s, p: c.Mprobe(MPI.ANY_SOURCE, TAG, p).Recv(a, s),
    "Mprobe Irecv": lambda c, a, s, p: c.Mprobe(MPI.ANY_SOURCE, TAG, p).Irecv(a).Wait(s),
    "Improbe Recv": lambda c, a, s, p: improbe(c, MPI.ANY_SOURCE, MPI.ANY_TAG, p).Recv(a, s),
    "Improbe Irecv": lambda c, a, s, p: improbe(c, MPI.ANY_SOURCE, MPI.ANY_TAG, p).Irecv(a).Wait(s),
    "Probe Recv": lambda c, a, s, p: (c.Probe(MPI.ANY_SOURCE, TAG, p), c.Recv(a, p.source, p.tag, s)),
    "Iprobe Recv": lambda c, a, s, p: (iprobe(c, MPI.ANY_SOURCE, TAG, p), c.Recv(a, p.source, TAG, s)),
    "Probe Irecv": lambda c, a, s, p: (c.Probe(MPI.ANY_SOURCE, TAG, p), c.Irecv(a, p.source, TAG).Wait(s)),
    "probe Recv": lambda c, a, s, p: (c.probe(MPI.ANY_SOURCE, TAG, p), c.Recv(a, p.source, p.tag, s)),
}


def told(status: MPI.Status) -> tuple[int, int, int]:
    return status.source, status.tag, status.Get_count(MPI.BYTE)


@pytest.mark.parametrize("receive", MATCHED.values(), ids=MATCHED)
@pytest.mark.parametrize("kind", ["compressed", "small", "bytes", "record"])
def test_statuses(comm, ours, agree, record, receive, kind):
    """Probes and receives of rank 0 give the last rank's messages, and their sources, tags and sizes."""
    last, ok = comm.size - 1, True
    for length in LENGTHS:
        if kind == "compressed":
            sent = data(N + length, "f4", length)
        elif kind == "small":
            sent = data(length // 4, "f4", length)
        else:
            sent = plain(length - length % 5 if kind == "record" else length)
        spec = [sent, sent.size // 5, record] if kind == "record" else sent
        if comm.rank == last:
            ours.Send(spec, 0, TAG)
        elif comm.rank == 0:
            got, status, probed = np.zeros_like(sent), MPI.Status(), MPI.Status()
            receive(ours, [got, got.size // 5, record] if kind == "record" else got, status, probed)
            ok &= bits(got) == bits(sent)
            ok &= told(status) == told(probed) == (last, TAG, sent.nbytes)
    assert agree(ok)


OBJECTS = {
    "recv": lambda c, s: c.recv(None, MPI.ANY_SOURCE, TAG, s),
    "irecv": lambda c, s: c.irecv(1 << 16, MPI.ANY_SOURCE, TAG).wait(s),
    "mprobe": lambda c, s: c.mprobe(MPI.ANY_SOURCE, TAG).recv(s),
    "improbe": lambda c, s: c.mprobe(MPI.ANY_SOURCE, TAG).irecv().wait(s),
    "sendrecv": lambda c, s: c.sendrecv(None, MPI.PROC_NULL, 0, None, MPI.ANY_SOURCE, TAG, s),
}


@pytest.mark.parametrize("receive", OBJECTS.values(), ids=OBJECTS)
def test_statuses_of_objects(comm, ours, agree, receive):
    """A probe that opens a pickled object, of any length, leaves the object to the receive that follows."""
    last, ok = comm.size - 1, True
    for length in (*LENGTHS, 50_000):
        sent = "x" * (length - len(pickle.dumps("x" * length, MPI.pickle.PROTOCOL)) + length)
        if comm.rank == last:
            ours.isend(sent, 0, TAG).wait()
        elif comm.rank == 0:
            status, nbytes = MPI.Status(), len(MPI.pickle.dumps(sent))
            ours.Probe(MPI.ANY_SOURCE, TAG, status)
            ok &= told(status) == (last, TAG, nbytes)
            ok &= ours.iprobe(MPI.ANY_SOURCE, TAG)
            ok &= receive(ours, status) == sent and told(status) == (last, TAG, nbytes)
    assert agree(ok)


def by_own(ours, comm, buf, got, prepared):
    MPI.Intracomm(ours).Recv(buf, 0, TAG)


def by_prepared(ours, comm, buf, got, prepared):
    prepared.Start()
    prepared.Wait()


def by_replace(ours, comm, buf, got, prepared):
    sent = MPI.Intracomm(ours).Irecv(bytearray(got.nbytes), comm.rank, 9)  # MPI may not buffer it
    ours.Sendrecv_replace(buf, comm.rank, 9, 0, TAG)
    sent.Wait()


def by_ireplace(ours, comm, buf, got, prepared):
    sent = MPI.Intracomm(ours).Irecv(bytearray(got.nbytes), comm.rank, 9)
    ours.Isendrecv_replace(buf, comm.rank, 9, 0, TAG).Wait()
    sent.Wait()


def by_sendrecv(ours, comm, buf, got, prepared):
    ours.Sendrecv(np.zeros(1), MPI.PROC_NULL, 0, buf, 0, TAG)


AFTERWARDS = [by_own, by_prepared, by_replace, by_sendrecv] + [by_ireplace] * HAS_ISENDRECV


@pytest.mark.parametrize("receive", AFTERWARDS)
def test_a_probed_message_is_still_there(comm, ours, agree, record, receive):
    """A probed message can still be received, by any kind of receive."""
    ok = True
    for length, as_records in product(LENGTHS, (False, True)):
        sent = plain(length - length % 5 if as_records else length)
        got = np.zeros_like(sent)
        buf = [got, got.size // 5, record] if as_records else got
        prepared = ours.Recv_init(buf, 0, TAG)
        if comm.rank == 0:
            ours.Send(sent, 1, TAG)
        elif comm.rank == 1:
            ours.Probe(0, TAG)
            iprobe(ours)
            receive(ours, comm, buf, got, prepared)
            ok &= bits(got) == bits(sent)
        prepared.Free()
    assert agree(ok)


def test_a_compressed_message_is_still_there(comm, ours, agree):
    got, ok = np.zeros(N, "f4"), True
    prepared = ours.Recv_init(got, 0, TAG)
    for receive in AFTERWARDS[1:]:
        if comm.rank == 0:
            ours.Send(data(N, "f4", 1), 1, TAG)
        elif comm.rank == 1:
            got[:] = 0
            ours.Probe(0, TAG, status := MPI.Status())
            ok &= status.Get_count(MPI.FLOAT) == N
            if receive is by_prepared or receive is by_sendrecv:
                receive(ours, comm, got, got, prepared)
            else:
                sent = ours.Irecv(np.zeros(N, "f4"), comm.rank, 9)
                ours.Sendrecv_replace(got, comm.rank, 9, 0, TAG)
                sent.Wait()
            ok &= bits(got) == bits(data(N, "f4", 1))
    prepared.Free()
    assert agree(ok)


def test_nothing_overtakes(comm, ours, agree):
    got, ok, order = np.zeros(N, "f4"), True, []
    if comm.rank == 0:
        MPI.Request.Waitall([ours.Isend(data(N, "f4", tag), 1, tag) for tag in (7, 9)])
    elif comm.rank == 1:
        ours.Probe(0, 9)
        for _ in range(2):
            ours.Recv(got, 0, MPI.ANY_TAG, status := MPI.Status())
            order.append(status.tag)
            ok &= bits(got) == bits(data(N, "f4", status.tag))
    assert agree(ok and order in ([], [7, 9]))


@threaded
def test_one_thread_probes_while_another_receives(comm, ours, agree):
    wrong, times, ended = [], 200, []
    if comm.rank == 0:
        for i in range(times):
            ours.Send(data(N, "f4", i % 5), 1, TAG)
    elif comm.rank == 1:

        def look() -> None:
            while not ended:
                status = MPI.Status()
                if ours.Iprobe(0, TAG, status) and status.Get_count(MPI.FLOAT) != N:
                    wrong.append((status.Get_count(MPI.BYTE), status.source, status.tag))

        thread = Thread(target=look)
        thread.start()
        got = np.zeros(N, "f4")
        for i in range(times):
            ours.Recv(got, 0, TAG)
            if bits(got) != bits(data(N, "f4", i % 5)):
                wrong.append(i)
        ended.append(True)
        thread.join()
    assert agree(not wrong)


def test_a_plain_message_among_compressed_ones(comm, ours, agree):
    """Occasional probes find a plain message, also while compressed messages keep arriving."""
    ok, tried = True, 0
    if comm.rank == 0:
        Unhooked(ours).Send(plain(1101), 1, 7)
        for _ in range(50):
            ours.Send(data(N, "f4", 1), 1, TAG)
    elif comm.rank == 1:
        while not ours.Iprobe(0, 7, status := MPI.Status()):
            tried += 1
            if tried % 10 == 0 and tried <= 500:
                ours.Recv(np.zeros(N, "f4"), 0, TAG)
            sleep(0.002 if tried < 500 else 0.1)
            assert tried < 600
        ok = status.Get_count(MPI.BYTE) == 1101
        ours.Recv(np.zeros(1101, "u1"), 0, 7)
        for _ in range(50 - min(tried, 500) // 10):
            ours.Recv(np.zeros(N, "f4"), 0, TAG)
    assert agree(ok)


@threaded
def test_threads_that_send_under_one_tag(comm, ours, agree):
    """Probes tell sizes of messages that threads send under one tag, although first messages are alike."""
    wrong, times, sizes = 0, 200, (2000, 3000, 4000)
    if comm.rank == 0:

        def send(n: int) -> None:
            for _ in range(times):
                ours.Send(np.zeros(n), 1, TAG)

        threads = [Thread(target=send, args=(n,)) for n in sizes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    elif comm.rank == 1:
        for _ in range(times * len(sizes)):
            ours.Probe(0, TAG, status := MPI.Status())
            ours.Recv(np.zeros(5000), 0, TAG, got := MPI.Status())
            wrong += status.Get_count(MPI.DOUBLE) != got.Get_count(MPI.DOUBLE)
    assert agree(not wrong)


def test_sizes_where_first_messages_are_alike(comm, agree):
    """Probes tell sizes although first messages are alike.

    Communicators of one family use one tag, with posted receives before some probes.
    """
    policy = Policy(codec="zfp:rate=8", min_nbytes=0, rules=(Rule(chunk_nbytes=16384),))
    first = compcoll.Comm(comm, policy=policy)
    several = [first, first.Dup(), first.Split(0, comm.rank), first.Dup()]
    several.append(several[1].Dup())
    sizes = [[4096 * (2 + (i * 7 + k) % 5) for i in range(8)] for k in range(len(several))]
    ok = True
    comm.Barrier()
    if comm.rank == 0:
        sent = [
            one.Isend(data(n, "f4", n), 1, TAG)
            for some in zip(*sizes, strict=True)
            for one, n in zip(several, some, strict=True)
        ]
        MPI.Request.Waitall(sent)
    elif comm.rank == 1:
        for one, some in list(zip(several, sizes, strict=True))[::-1]:
            posted = [one.Irecv(np.zeros(n, "f4"), 0, TAG) for n in some[:3]]
            for n in some[3:]:
                one.Probe(0, TAG, status := MPI.Status())
                ok &= status.Get_count(MPI.FLOAT) == n
                one.Recv(np.zeros(n, "f4"), 0, TAG)
            MPI.Request.Waitall(posted)
    assert agree(ok)
    for one in several[1:]:
        one.Free()


def test_a_matched_message_is_null_afterwards(comm, ours, agree):
    ok = True
    if comm.rank == 0:
        ours.Send(data(N, "f4", 0), 1, TAG)
    elif comm.rank == 1:
        message = ours.Mprobe(0, TAG)
        ok = bool(message) and message != MPI.MESSAGE_NULL
        ok &= not ours.Iprobe(0, TAG)
        message.Recv(got := np.zeros(N, "f4"))
        ok &= not message and message == MPI.MESSAGE_NULL and bits(got) == bits(data(N, "f4", 0))
        if MPI.get_vendor()[0] != "Open MPI":  # Open MPI ends the program
            with pytest.raises(MPI.Exception):
                message.Recv(got)
    assert agree(ok)


@pytest.mark.parametrize("dtype", [BF16, np.dtype("f2")], ids=str)
@pytest.mark.parametrize("receive", MATCHED.values(), ids=MATCHED)
def test_types_that_mpi_lacks(comm, ours, agree, receive, dtype):
    """Types that MPI lacks arrive by Ssend and after every kind of probe, small or compressed."""
    last, ok = comm.size - 1, True
    for n in (3, N):
        if comm.rank == last:
            ours.Ssend(typed(data(n, dtype, n)), 0, TAG)
        elif comm.rank == 0:
            got, status = np.zeros(n, dtype), MPI.Status()
            receive(ours, typed(got), status, MPI.Status())
            ok &= bits(got) == bits(data(n, dtype, n)) and told(status) == (last, TAG, got.nbytes)
    assert agree(ok)
