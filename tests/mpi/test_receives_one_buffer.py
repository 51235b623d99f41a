"""Receives whose buffers overlap, as in a window of messages to one buffer.

A byte that several messages write has the value of one of them when all have completed; every other byte has
the value of its only message.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from threading import Thread

import numpy as np
import pytest
from common import Unhooked, bits, data
from mpi4py import MPI

import compcoll

MIB = 1 << 20
#: Values of 2 MiB, which MPI itself receives into the buffer, of less, and of a message of one chunk.
N, SMALL, TINY = 2 * MIB // 4, 1 << 16, 1 << 12
pytestmark = pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="needs two ranks")


@pytest.fixture
def ours(comm):
    return compcoll.Comm(comm, "lossless", min_nbytes=4096)


def waitany(requests: list[MPI.Request]) -> None:
    for _ in requests:
        MPI.Request.Waitany(requests)


WAITS: dict[str, Callable] = {
    "Waitall": MPI.Request.Waitall,
    "Waitany": waitany,
    "one by one, the last first": lambda requests: [request.Wait() for request in requests[::-1]],
}


@lru_cache(1)
def smooth(n: int) -> np.ndarray:
    return data(n, "f4", 0)


def values_of(n: int, k: int) -> np.ndarray:
    return smooth(n) + np.float32(k)


def senders_of(comm, count: int) -> list[int]:
    return list(range(1, min(comm.size, 1 + count)))


def is_mix(buffer: np.ndarray, parts: list[tuple[slice, np.ndarray]]) -> bool:
    """True if each value of a buffer is that of some message at its place."""
    found = np.zeros(buffer.size, bool)
    for place, values in parts:
        found[place] |= buffer[place].view("u4") == values.view("u4")
    return bool(found.all())


def run_window(ours, n: int, count: int, step: int, wait: Callable, *, senders=1, equal=False) -> bool:
    """Receive messages of some ranks, sent in reverse, ``step`` values apart; returns True if they arrive."""
    sources = senders_of(ours, senders)
    values = lambda rank, k: values_of(n, 0 if equal else 100 * rank + k)  # noqa: E731
    if ours.rank in sources:
        sent = [values(ours.rank, k) for k in range(count)]
        MPI.Request.Waitall([ours.Isend(sent[k], 0, k) for k in reversed(range(count))])
    if ours.rank:
        return True
    each = [(source, k) for k in range(count) for source in sources]
    buffer = np.zeros(n + step * (len(each) - 1), "f4")
    places = [slice(i * step, i * step + n) for i in range(len(each))]
    wait([ours.Irecv(buffer[place], *one) for place, one in zip(places, each, strict=True)])
    return is_mix(buffer, [(place, values(*one)) for place, one in zip(places, each, strict=True)])


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
@pytest.mark.parametrize("step", [0, N // 2], ids=["one buffer", "halves"])
@pytest.mark.parametrize("senders", [1, 2])
def test_a_window(ours, agree, wait, step, senders):
    assert agree(run_window(ours, N, 16 // senders, step, wait, senders=senders))


@pytest.mark.parametrize("n", [TINY, SMALL, MIB // 4, MIB // 4 + 500])
def test_a_window_of_another_size(ours, agree, n):
    assert agree(run_window(ours, n, 16, 0, MPI.Request.Waitall))
    assert agree(run_window(ours, n, 16, n // 2, MPI.Request.Waitall))


def test_a_window_of_equal_messages(ours, agree):
    assert agree(run_window(ours, N, 16, 0, MPI.Request.Waitall, equal=True))


@pytest.mark.exhaustive
def test_a_window_of_32_mib(ours, agree):
    assert agree(run_window(ours, 32 * MIB // 4, 3, 0, MPI.Request.Waitall))


# -- other receives than Irecv


def by_persistent(ours, buffer, count):
    requests = [ours.Recv_init(buffer, 1, k) for k in range(count)]
    for _ in range(2):
        MPI.Prequest.Startall(requests)
        MPI.Request.Waitall(requests)
    for request in requests:
        request.Free()


def by_threads(ours, buffer, count):
    def receive(k):
        for _ in range(2):
            ours.Recv(buffer, 1, k)

    threads = [Thread(target=receive, args=(k,)) for k in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def beside_sendrecv(ours, buffer, count):
    for _ in range(2):
        requests = [ours.Irecv(buffer, 1, k) for k in range(count - 1)]
        ours.Sendrecv(b"", MPI.PROC_NULL, 0, buffer, 1, count - 1)
        MPI.Request.Waitall(requests)


def beside_matched(ours, buffer, count):
    for _ in range(2):
        requests = [ours.Irecv(buffer, 1, k) for k in range(1, count)]
        requests.append(ours.Mprobe(1, 0).Irecv(buffer))
        MPI.Request.Waitall(requests)


def strided(ours, buffer, count):
    """Receive types with a gap after each value, two of which fill the buffer."""
    n = buffer.size // 2
    datatype = MPI.FLOAT.Create_vector(n, 1, 2).Commit()
    for _ in range(2):
        requests = [ours.Irecv(buffer, 1, k) for k in range(0, count, 2)]
        requests += [ours.Irecv([buffer[k // 2 % 2 :], 1, datatype], 1, k) for k in range(1, count, 2)]
        MPI.Request.Waitall(requests)
    datatype.Free()


OTHERS = [by_persistent, by_threads, beside_sendrecv, beside_matched, strided]


@pytest.mark.parametrize("n", [SMALL, N])
@pytest.mark.parametrize("receive", OTHERS, ids=lambda receive: receive.__name__)
def test_another_receive(ours, agree, receive, n):
    if receive is by_threads and MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        pytest.skip("needs threads")
    count = 6
    parts = [data(n // 2 if receive is strided and k % 2 else n, "f4", k) for k in range(count)]
    sound = True
    if ours.rank == 1:
        for _ in range(2):
            MPI.Request.Waitall([ours.Isend(values, 0, k) for k, values in enumerate(parts)])
    elif ours.rank == 0:
        buffer = np.zeros(n, "f4")
        receive(ours, buffer, count)
        places = [slice(None)] * count
        if receive is strided:
            places = [slice(k // 2 % 2, None, 2) if k % 2 else slice(None) for k in range(count)]
        sound = is_mix(buffer, list(zip(places, parts, strict=True)))
    assert agree(sound)


# -- one after the other, as the standard would require if it allowed receives into one buffer


def floats(buffer, n):
    return [buffer, n, MPI.FLOAT]


#: Later receives, posted while an earlier one of the same buffer is pending: place among 2 N values, number
#: of values, and a function that makes the argument.
LATER = {
    "the buffer": (slice(0, N), N, lambda b: floats(b, N)),
    "more": (slice(0, 2 * N), 2 * N, lambda b: floats(b, 2 * N)),
    "some values of one chunk": (slice(1000, 1000 + TINY), TINY, lambda b: floats(b[1000:], TINY)),
    "few values": (slice(3, 53), 50, lambda b: floats(b[3:], 50)),
    "its second half, and as many behind it": (
        slice(N // 2, N // 2 + N),
        N,
        lambda b: floats(b[N // 2 :], N),
    ),
}
#: End of the earlier receive: number of values that are sent for it, and the sending communicator.
EARLIER = {
    "compressed": (N, lambda c: c),
    "compressed, and shorter": (N // 2 + 7, lambda c: c),
    "plain": (N, Unhooked),
    "plain, and few": (20, Unhooked),
    "cancelled": (0, None),
}


@pytest.mark.parametrize("earlier", EARLIER.values(), ids=EARLIER)
@pytest.mark.parametrize("later", LATER.values(), ids=LATER)
def test_an_earlier_receive_that_ends_last(ours, agree, earlier, later):
    """Each value of the later message arrives, except those that the earlier message overwrites."""
    (place, n, describe), (n_earlier, by) = later, earlier
    first, second = data(n_earlier, "f4", 1), data(n, "f4", 2)
    sound = True
    if ours.rank == 1:
        ours.Recv(bytearray(1), 0, 3)
        ours.Send(second, 0, 2)
        ours.Recv(bytearray(1), 0, 3)
        if by is not None:
            by(ours).Send(first, 0, 1)
    elif ours.rank == 0:
        buffer = np.full(2 * N, -1, "f4")
        want = buffer.copy()
        waiting = ours.Irecv(buffer[:N], 1, 1)
        ours.Send(bytearray(1), 1, 3)
        ours.Recv(describe(buffer), 1, 2)
        want[place] = second
        sound = bits(buffer[max(N, place.start) :]) == bits(want[max(N, place.start) :])
        ours.Send(bytearray(1), 1, 3)
        if by is None:
            waiting.Cancel()
        waiting.Wait()
        want[:n_earlier] = first
        sound = sound and bits(buffer) == bits(want)
    assert agree(sound)


def test_few_values_before_many(ours, agree):
    """MPI's receive of few values completes although a compressed message for the buffer is not yet read."""
    sound = True
    if ours.rank == 1:
        for k in range(10):
            many, few = values_of(N, k), values_of(50, 90 + k)
            MPI.Request.Waitall([ours.Isend(many, 0, 1), ours.Isend(few, 0, 2)])
            ours.Recv(bytearray(1), 0, 3)
    elif ours.rank == 0:
        for k in range(10):
            buffer = np.zeros(N, "f4")
            few = ours.Irecv(floats(buffer, 50), 1, 2)
            many = ours.Irecv(buffer, 1, 1)
            MPI.Request.Waitall([few, many])
            parts = [(slice(None), values_of(N, k)), (slice(0, 50), values_of(50, 90 + k))]
            sound = sound and is_mix(buffer, parts)
            ours.Send(bytearray(1), 1, 3)
    assert agree(sound)


def test_a_type_with_a_gap_into_memory_that_waits(ours, agree):
    """A type whose layout only MPI knows: its values arrive, and the gaps between them are not written."""
    n = 3000
    record = np.dtype([("value", "f8"), ("index", "i4")], align=True)
    sound = True
    if ours.rank == 1:
        values = np.zeros(n, record)
        values["value"], values["index"] = data(n, "f8", 3), np.arange(n)
        ours.Recv(bytearray(1), 0, 3)
        ours.Send([values, n, MPI.DOUBLE_INT], 0, 2)
    elif ours.rank == 0:
        buffer = np.full(n * record.itemsize + 4 * N, 7, "u1")
        waiting = ours.Irecv([buffer[1024:], N, MPI.FLOAT], 1, 1)
        ours.Send(bytearray(1), 1, 3)
        ours.Recv([buffer, n, MPI.DOUBLE_INT], 1, 2)
        waiting.Cancel()
        waiting.Wait()
        got = buffer[: n * record.itemsize].view(record)
        gaps = buffer[: n * record.itemsize].reshape(n, -1)[:, 12:]
        sound = bits(got["value"]) == bits(data(n, "f8", 3)) and (got["index"] == np.arange(n)).all()
        sound = sound and (gaps == 7).all() and (buffer[n * record.itemsize :] == 7).all()
    assert agree(bool(sound))
