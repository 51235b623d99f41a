"""Exchanges of large messages, whose chunks may wait for the other rank's chunks, against plain MPI."""

import threading
from itertools import product

import numpy as np
import pytest
from common import bits, data
from mpi4py import MPI

import compcoll
from compcoll.policy import Policy, Rule

N = 400_003
TAG = 3
pytestmark = pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="needs two ranks")


@pytest.fixture(params=[256 << 10, 4 << 20], ids=["chunks", "one chunk"])
def ours(comm, request):
    return compcoll.Comm(comm, policy=Policy("lossless", rules=(Rule(chunk_nbytes=request.param),)))


@pytest.fixture
def peer(comm):
    """The rank beside this one in a pair; the rank itself if it has none."""
    other = comm.rank ^ 1
    return other if other < comm.size else comm.rank


def values(rank: int, k: int = 0) -> np.ndarray:
    return data(N, "f4", rank + 100 * k)


def sendrecv(c, a, b, peer):
    c.Sendrecv(a, peer, TAG, b, peer, TAG)


def sendrecv_replace(c, a, b, peer):
    b[:] = a
    c.Sendrecv_replace(b, peer, TAG, peer, TAG)


def receive_first(c, a, b, peer):
    MPI.Request.Waitall([c.Irecv(b, peer, TAG), c.Isend(a, peer, TAG)])


def send_first(c, a, b, peer):
    MPI.Request.Waitall([c.Isend(a, peer, TAG), c.Irecv(b, peer, TAG)])


def wait_in_turn(c, a, b, peer):
    send, receive = c.Isend(a, peer, TAG), c.Irecv(b, peer, TAG)
    receive.Wait()
    send.Wait()


def any_source(c, a, b, peer):
    receive = c.Irecv(b, MPI.ANY_SOURCE, MPI.ANY_TAG)
    c.Isend(a, peer, TAG).Wait()
    receive.Wait()


def persistent(c, a, b, peer):
    requests = [c.Send_init(a, peer, TAG), c.Recv_init(b, peer, TAG)]
    for order in (requests, requests[::-1]):
        b[:] = 0
        MPI.Prequest.Startall(order)
        MPI.Request.Waitall(order)
    for request in requests:
        request.Free()


def probe(c, a, b, peer):
    """Exchange in which no receive is posted when the messages are sent."""
    send = c.Isend(a, peer, TAG)
    c.Probe(peer, TAG)
    c.Recv(b, peer, TAG)
    send.Wait()


def matched_probe(c, a, b, peer):
    send = c.Isend(a, peer, TAG)
    c.Mprobe(peer, TAG).Irecv(b).Wait()
    send.Wait()


def answer(c, a, b, peer):
    """Exchange in which the lower rank has posted the receive of the answer to its message."""
    if c.rank < peer:
        receive = c.Irecv(b, peer, TAG)
        c.Send(a, peer, TAG)
        receive.Wait()
    elif c.rank > peer:
        c.Recv(b, peer, TAG)
        c.Send(a, peer, TAG)
    else:
        send_first(c, a, b, peer)


EXCHANGES = [
    sendrecv, sendrecv_replace, receive_first, send_first, wait_in_turn, any_source, persistent, probe,
    matched_probe, answer,
]  # fmt: skip


@pytest.mark.parametrize(("mine", "theirs"), [(one, one) for one in EXCHANGES] + [
    (mine, theirs) for mine, theirs in product((sendrecv, receive_first, send_first, probe), repeat=2)
    if mine is not theirs
])  # fmt: skip
def test_orders(comm, ours, peer, agree, mine, theirs):
    """Both ranks of a pair get each other's values, whatever the order in which each sends and receives."""
    exchange = mine if comm.rank < peer else theirs
    for k in range(2):
        got, want = np.zeros(N, "f4"), np.zeros(N, "f4")
        exchange(ours, values(comm.rank, k), got, peer)
        comm.Sendrecv(values(comm.rank, k), peer, TAG, want, peer, TAG)
        assert agree(bits(got) == bits(want))


@pytest.mark.parametrize("cancels", [False, True])
def test_a_receive_without_a_message(comm, ours, peer, agree, cancels):
    """A send completes while a receive from its receiver stays posted, or is cancelled meanwhile."""
    never, got = np.zeros(N, "f4"), np.zeros(N, "f4")
    posted = ours.Irecv(never, peer, TAG + 1)
    send = ours.Isend(values(comm.rank), peer, TAG)
    if cancels:
        posted.Cancel()
    ours.Recv(got, peer, TAG)
    send.Wait()
    status = MPI.Status()
    if not cancels:
        posted.Cancel()
    posted.Wait(status)
    assert agree(status.Is_cancelled() and not never.any())
    assert agree(bits(got) == bits(values(peer)))


def test_a_short_answer(comm, ours, peer, agree):
    """A plain message, or one of a single chunk, answers a large one."""
    for n in (5, 30_000):
        short, got = np.zeros(N, "f4"), np.zeros(N, "f4")
        receives = [ours.Irecv(short, peer, TAG + 1), ours.Irecv(got, peer, TAG)]
        sends = [ours.Isend(values(comm.rank), peer, TAG), ours.Isend(values(comm.rank)[:n], peer, TAG + 1)]
        MPI.Request.Waitall(receives + sends)
        assert agree(bits(got) == bits(values(peer)))
        assert agree(bits(short[:n]) == bits(values(peer)[:n]) and not short[n:].any())


@pytest.mark.skipif(MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="MPI is not for several threads")
def test_threads(comm, ours, peer, agree):
    """Two threads exchange messages with the same rank at once."""
    got = [np.zeros(N, "f4") for _ in range(2)]

    def exchange(k: int) -> None:
        for order in range(6):
            receive = ours.Irecv(got[k], peer, TAG + k) if order % 2 else None
            send = ours.Isend(values(comm.rank, k), peer, TAG + k)
            (receive or ours.Irecv(got[k], peer, TAG + k)).Wait()
            send.Wait()

    threads = [threading.Thread(target=exchange, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert agree(all(bits(got[k]) == bits(values(peer, k)) for k in range(2)))
