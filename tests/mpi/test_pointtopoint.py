"""Send, Recv and similar calls: every kind of sender meets every kind of receiver."""

from itertools import product

import numpy as np
import pytest
from common import Unhooked, bits, data, fails
from mpi4py import MPI
from receives import HAS_ISENDRECV, RECEIVES

import compcoll

LARGE, SMALL = 40_000, 10
pytestmark = pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="needs two ranks")


@pytest.fixture
def ours(comm):
    return compcoll.Comm(comm, "lossless", min_nbytes=4096)


def ring(comm):
    return (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size


def payload(comm, rank: int, n: int = LARGE, k: int = 0):
    return data(n, "f4", rank + 100 * k)


SENDERS = {
    "Send": lambda c, a, dest, tag: [c.Send(a, dest, tag)],
    "Isend": lambda c, a, dest, tag: [c.Isend(a, dest, tag)],
    "Ssend": lambda c, a, dest, tag: [c.Issend(a, dest, tag)],
    "unwrapped": lambda c, a, dest, tag: [Unhooked(c).Isend(a, dest, tag)],
    "Sendrecv": lambda c, a, dest, tag: [c.Sendrecv(a, dest, tag, np.empty(0, "f4"), MPI.PROC_NULL)],
    "Isendrecv": lambda c, a, dest, tag: [c.Isendrecv(a, dest, tag, np.empty(0, "f4"), MPI.PROC_NULL)],
}


if not HAS_ISENDRECV:
    del SENDERS["Isendrecv"]


@pytest.mark.parametrize("receive", RECEIVES.values(), ids=RECEIVES)
def test_pairings(comm, ours, agree, receive):
    """Every sender meets every receiver, with small and large messages, by names and by wildcards."""
    for (name, send), n, wildcard in product(SENDERS.items(), (SMALL, LARGE), (False, True)):
        got, status = np.zeros(n, "f4"), MPI.Status()
        if comm.rank % 2 == 0 and comm.rank + 1 < comm.size:
            for request in send(ours, payload(comm, comm.rank, n), comm.rank + 1, 9):
                if request is not None:
                    request.Wait()
        elif comm.rank % 2:
            source, tag = (MPI.ANY_SOURCE, MPI.ANY_TAG) if wildcard else (comm.rank - 1, 9)
            as_bytes = [got.view(np.uint8), MPI.BYTE]
            receive(ours, as_bytes if wildcard and name == "Send" else got, source, tag, status)
        odd = comm.rank % 2
        assert agree(not odd or bits(got) == bits(payload(comm, comm.rank - 1, n))), (name, n)
        told = status.source, status.tag, status.Get_count(MPI.FLOAT)
        assert agree(not odd or told == (comm.rank - 1, 9, n)), (name, n)


def test_sendrecv_replace(comm, ours, agree):
    before, behind = ring(comm)
    for n in (SMALL, LARGE):
        got = payload(comm, comm.rank, n)
        ours.Sendrecv_replace(got, behind, 3, before, 3)
        assert agree(bits(got) == bits(payload(comm, before, n)))
        if HAS_ISENDRECV:
            ours.Isendrecv_replace(got, behind, 3, before, 3).Wait()
            assert agree(bits(got) == bits(payload(comm, (before - 1) % comm.size, n)))


def test_self_messages(comm, ours, agree):
    got = np.zeros(LARGE, "f4")
    ours.Sendrecv(payload(comm, 1), comm.rank, 0, got, comm.rank, 0)
    assert agree(bits(got) == bits(payload(comm, 1)))
    request = ours.Irecv(got, comm.rank, 1)
    ours.Send(payload(comm, 2), comm.rank, 1)
    request.Wait()
    assert agree(bits(got) == bits(payload(comm, 2)))


def test_order_and_many_in_flight(comm, ours, agree):
    """Small and large messages with equal tags keep their order, by Recv as by Irecv."""
    before, behind = ring(comm)
    sizes = [LARGE, SMALL, LARGE, LARGE + 1, SMALL, 1, LARGE] * 3
    for posted in (False, True):
        got = [np.zeros(LARGE + 1, "f4") for _ in sizes]
        requests = [ours.Irecv(a, before, 4) for a in got] if posted else []
        if not posted and comm.rank == 0:
            sent = [Unhooked(ours).Isend(payload(comm, 0, n, k), behind, 4) for k, n in enumerate(sizes)]
        elif posted or comm.rank:
            pass
        if posted:
            for k, n in enumerate(sizes):
                ours.Send(payload(comm, comm.rank, n, k), behind, 4)
            MPI.Request.Waitall(requests)
        else:
            if comm.rank:
                for k, a in enumerate(got):
                    ours.Recv(a, before, 4)
                    ours.Send(payload(comm, comm.rank, sizes[k], k), behind, 4)
            else:
                for a in got:
                    ours.Recv(a, before, 4)
                MPI.Request.Waitall(sent)
        right = all(
            bits(a[:n]) == bits(payload(comm, before, n, k)) and not a[n:].any()
            for k, (a, n) in enumerate(zip(got, sizes, strict=True))
        )
        assert agree(right)


def test_proc_null(comm, ours, agree):
    got, status = np.full(LARGE, 7, "f4"), MPI.Status()
    ours.Send(got, MPI.PROC_NULL)
    ours.Recv(got, MPI.PROC_NULL, status=status)
    ours.Sendrecv(got, MPI.PROC_NULL, 0, got, MPI.PROC_NULL)
    ours.Irecv(got, MPI.PROC_NULL).Wait()
    assert agree((got == 7).all() and status.source == MPI.PROC_NULL)


@pytest.mark.parametrize("n", [5000, 600_000], ids=["one chunk", "several"])
@pytest.mark.parametrize("spec", ["szp:abs=1e-3", "zfp:rate=8", "int8", "lossless"])
def test_both_ends_report_the_same_bound(comm, agree, spec, n):
    ours = compcoll.Comm(comm, spec)
    sent, got = np.cumsum(payload(comm, 0, n)), np.zeros(n, "f4")
    bounds = []
    for send in SENDERS.values():
        if comm.rank == 0 and send is not SENDERS["unwrapped"]:
            for request in send(ours, sent, 1, 0):
                if request is not None:
                    request.Wait()
            bounds.append(ours.report.error_bound)
        elif comm.rank == 1 and send is not SENDERS["unwrapped"]:
            ours.Recv(got, 0)
            bounds.append(ours.report.error_bound)
            error = np.abs(got.astype("f8") - sent).max()
            assert bounds[-1] is None or error <= bounds[-1]
            assert (error == 0) == (bounds[-1] == 0) == (spec == "lossless")
    everyone = comm.allgather(bounds)
    assert agree(everyone[0] == everyone[1])


def test_uncompressed_messages_are_not_counted(comm, agree):
    ours = compcoll.Comm(comm, "lossless", min_nbytes=1000)
    before, behind = ring(comm)
    sent, got = Unhooked(ours).Isend(payload(comm, comm.rank), behind), np.zeros(LARGE, "f4")
    ours.Recv(got, before)
    sent.Wait()
    assert agree(ours.calls_accelerated == 0 and not ours.report.accelerated)
    assert agree("came uncompressed" in ours.report.reason)


def test_the_report_says_why_mpi_carries_a_large_message(comm, ours, agree):
    """The reason for a large message that is never compressed is not that of small messages."""
    array, got = payload(comm, comm.rank), np.zeros(LARGE, "f4")
    before, behind = ring(comm)
    receive = ours.Irecv(got, comm.rank)
    ours.Send(array, comm.rank)
    assert agree(ours.report.reason == "messages to the sending rank go to MPI")
    receive.Wait()
    receive = ours.Irecv(got, before)
    comm.Barrier()
    ours.Rsend(array, behind)
    assert agree(ours.report.reason == "Bsend and Rsend go to MPI")
    receive.Wait()
    ours.Send(payload(comm, comm.rank, SMALL), MPI.PROC_NULL)
    assert agree(ours.report.reason.startswith("the messages are below min_nbytes"))


@pytest.mark.parametrize("send", ["Send", "Bsend", "Rsend"])
def test_plain_messages_of_odd_lengths(comm, ours, agree, send):
    """Plain messages of any length arrive by each kind of receive, also those as long as a first message."""
    lengths, ok = (1, 25, *range(901, 1301, 10), 5001), True
    receives = [RECEIVES[name] for name in ("Recv", "Irecv", "Probe", "Mrecv")]
    if send == "Bsend":
        MPI.Attach_buffer(bytearray(6000 + MPI.BSEND_OVERHEAD))
    for length in lengths:
        values = np.arange(length, dtype="u4").astype("u1")
        if comm.rank == 0:
            if send == "Rsend":
                comm.recv(source=1)
            getattr(Unhooked(ours), send)(values, 1, 3)
            if send == "Bsend":
                comm.recv(source=1)
        elif comm.rank == 1:
            got, status = np.zeros(6000, "u1"), MPI.Status()
            if send == "Rsend":
                arriving = ours.Irecv(got, 0, 3)
                comm.send(None, 0)
                arriving.Wait(status)
            else:
                (got,) = (got[:length] if length % 8 > 4 else got,)
                receive = receives[length // 2 % 4]
                receive(ours, got if receive in receives[:2] else got[:length], 0, 3, status)
            if send == "Bsend":
                comm.send(None, 0)
            ok &= bits(got[:length]) == bits(values) and not got[length:].any()
            ok &= (status.source, status.tag, status.Get_count(MPI.BYTE)) == (0, 3, length)
    if send == "Bsend":
        MPI.Detach_buffer()
    assert agree(ok)


def test_what_lies_behind_a_shorter_message_stays(comm, agree):
    """A receive that is large enough for any first message keeps the values behind a shorter message."""
    for least, n in ((0, 20), (16384, 4096)):
        ours = compcoll.Comm(comm, "lossless", min_nbytes=least)
        sent = np.random.default_rng(n).integers(-(1 << 62), 1 << 62, n)
        got, before = np.full(1 << 18, -1), ring(comm)[0]
        arriving = ours.Irecv(got, before, 2)
        ours.Send(sent, ring(comm)[1], 2)
        arriving.Wait()
        assert agree((got[:n] == sent).all() and (got[n:] == -1).all())


@pytest.mark.parametrize("datatype", ["SHORT_INT", "DOUBLE_INT", "LONG_INT", "FLOAT_INT"])
def test_pairs(comm, ours, agree, datatype):
    """Pair types, some with a gap, give plain MPI's bytes, also if a message ends within an entry."""
    datatype = getattr(MPI, datatype)
    n, (_, extent) = 3000, datatype.Get_extent()
    plain = MPI.Intracomm(comm)
    mine = np.random.default_rng(comm.rank).integers(0, 256, n * extent, dtype="u1")
    before, behind = ring(comm)
    results = []
    for on in (plain, ours):
        got = np.zeros_like(mine)
        arriving = on.Irecv([got, n, datatype], before, 4)
        on.Send([mine, n - 5, datatype], behind, 4)
        arriving.Wait()
        results.append(bits(got))
    assert agree(results[0] == results[1])


@pytest.mark.parametrize("how", ["Recv", "Irecv", "Mrecv", "Recv_init"])
@pytest.mark.parametrize(
    ("n", "sent", "received", "alike"),
    [
        (500_003, "f4", "f8", False),
        (LARGE, "f8", "i8", False),
        (LARGE, "f4", "i4", False),
        (LARGE, "i4", "u4", True),
        (LARGE, "c8", "f4", True),
        (500_003, "f4", "u1", True),
    ],
)
def test_received_as_another_type(comm, ours, agree, how, n, sent, received, alike):
    """A receive as a type of other values raises MISMATCH, and the next message arrives."""
    left, right = ring(comm)
    for kind in (received, sent):
        values = data(n, sent, left)
        into = np.zeros(values.nbytes if kind == "u1" else n * (1 + (kind == "f4" and sent == "c8")), kind)
        request = ours.Isend(data(n, sent, comm.rank), right, 3)
        if kind == received and not alike:
            with fails("MISMATCH", "has sent"):
                RECEIVES[how](ours, into, left, 3, MPI.Status())
        else:
            RECEIVES[how](ours, into, left, 3, MPI.Status())
            assert bits(into) == bits(values)
        request.Wait()
    assert agree(True)


def test_objects_of_one_communicator_have_one_report(comm, agree):
    """Wrappers with equal settings are one duplicate, and have one report whichever of them sends."""
    one, other = (compcoll.Comm(comm, "lossless", min_nbytes=1000) for _ in range(2))
    assert one == other
    if comm.rank == 0:
        one.Send(data(5000, "f4", 0), 1)
    elif comm.rank == 1:
        one.Recv(np.zeros(5000, "f4"), 0)
    same = str(one.report) == str(other.report) and one.calls_accelerated == other.calls_accelerated
    assert agree(same and one.report.accelerated == (comm.rank < 2))
    for made in (one, other):
        made.Free()


def test_messages_outlive_the_communicators_between(comm, agree):
    """A duplicate accelerates messages if the communicator that it was made from sent none and was freed."""
    first = compcoll.Comm(comm, "lossless", min_nbytes=1000)
    second = first.Dup()
    third = second.Dup()
    second.Free()
    got = np.zeros(5000, "f4")
    if comm.rank == 0:
        third.Send(data(5000, "f4", 0), 1)
    elif comm.rank == 1:
        third.Recv(got, 0)
    accelerated = third.report.accelerated == (comm.rank < 2)
    assert agree(accelerated and (comm.rank != 1 or bits(got) == bits(data(5000, "f4", 0))))
    third.Free()
    first.Free()
