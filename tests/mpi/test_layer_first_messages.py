"""Nonblocking receives of messages of one chunk: plain, compressed, and damaged."""

import struct
from itertools import count
from time import monotonic

import numpy as np
import pytest
from common import Unhooked, bits, data, fails
from mpi4py import MPI

import compcoll
from compcoll.core import _cpu
from compcoll.engine import _engine

N = 3001
SERIALS = count(1000)
pytestmark = pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="needs two ranks")


@pytest.fixture
def ours(comm):
    return compcoll.Comm(comm, "lossless", min_nbytes=0)


def ring(comm):
    return (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size


def received(comm, ours, message, dtype="f4", n=N):
    """Array and status of a nonblocking receive of bytes that the rank before sends."""
    got, status = np.zeros(n, dtype), MPI.Status()
    arriving = ours.Irecv(got, (comm.rank - 1) % comm.size, 5)
    Unhooked(ours).Send([message, MPI.BYTE], (comm.rank + 1) % comm.size, 5)
    arriving.Wait(status)
    return got, status


def pack(n: int, step: int, itemsize: int, frame: np.ndarray) -> np.ndarray:
    """First message of a stream, in the layout of csrc/layer/first_message.h."""
    head = struct.pack("<QIIIII", n, step, itemsize, 0, next(SERIALS), frame.size)
    head += struct.pack("<I", _cpu.checksum(np.frombuffer(head, "u1")))
    least = max(len(head) + frame.size, 1024)
    message = np.zeros(least + (77 - least) % 128, "u1")
    message[:32], message[32 : 32 + frame.size] = np.frombuffer(head, "u1"), frame
    return message


def first_message(values, codec="lossless", step=None):
    frame = np.asarray(compcoll.codec(codec).encode(values)).reshape(-1)
    return pack(values.size, step or values.size, values.itemsize, frame)


@pytest.mark.parametrize("codec", ["lossless", "raw", "zfp:rate=8", "int8"])
@pytest.mark.parametrize("room", [N, N + 7])
def test_a_compressed_message(comm, ours, agree, codec, room):
    values = data(N, "f4", 3)
    got, status = received(comm, ours, first_message(values, codec), n=room)
    want = compcoll.decode(compcoll.codec(codec).encode(values))
    assert agree(bits(got[:N]) == bits(want) and not got[N:].any())
    assert agree(status.Get_count(MPI.FLOAT) == N and status.tag == 5)
    assert agree(ours.report.op == "Recv" and ours.report.error_bound >= np.abs(got[:N] - values).max())


def test_a_compressed_message_of_three_dimensions(comm, ours, agree):
    values = data(8 * 12 * 20, "f8", 3).reshape(8, 12, 20)
    got, _ = received(comm, ours, first_message(values, "zfp:rate=16"), "f8", values.size)
    assert agree(bits(got) == bits(compcoll.decode(compcoll.codec("zfp:rate=16").encode(values)).reshape(-1)))


@pytest.mark.parametrize("n", [0, 1, N])
def test_a_plain_message(comm, ours, agree, n):
    values = data(N, "f4", 4)[:n]
    count = ours.calls_accelerated
    got, status = received(comm, ours, values.view(np.uint8))
    assert agree(bits(got[:n]) == bits(values) and not got[n:].any())
    assert agree(status.Get_count(MPI.FLOAT) == n and ours.calls_accelerated == count)


@pytest.mark.parametrize("where", ["magic", "shape", "payload", "last"])
def test_a_damaged_frame(comm, ours, agree, where):
    message = first_message(data(N, "f4", 5))
    end = 32 + int(message[24:28].view("<u4")[0]) - 3
    place = {"magic": 32, "shape": 32 + 30, "payload": 32 + 80 + 1000, "last": end}[where]
    message[place] ^= 0x40
    with fails("FRAME", "damaged" if where == "magic" else None):
        received(comm, ours, message)
    comm.Barrier()


def test_a_damaged_header(comm, ours):
    """A damaged header is an error, because the odd length of its message fits no larger elements."""
    message = first_message(data(N, "f4", 6))
    message[8] ^= 1
    with fails("FRAME", "damaged"):
        received(comm, ours, message)
    comm.Barrier()


@pytest.mark.parametrize("plain", [False, True])
def test_truncation(comm, ours, plain):
    values = data(N, "f4", 7)
    with pytest.raises(MPI.Exception) as raised:
        received(comm, ours, values.view(np.uint8) if plain else first_message(values), n=N - 100)
    assert raised.value.Get_error_class() == MPI.ERR_TRUNCATE
    comm.Barrier()


def test_what_is_cancelled(comm, ours, agree):
    got = np.zeros(N, "f4")
    status, arriving = MPI.Status(), ours.Irecv(got, comm.rank, 6)
    arriving.Cancel()
    arriving.Wait(status)
    assert agree(status.Is_cancelled() and not got.any())


def test_no_receive_is_remembered(comm, ours, agree):
    """The layer keeps no receive and no notice, however messages were received and requests ended."""
    before, behind = ring(comm)
    kept = [np.zeros(N, "f4") for _ in range(100)]  # freed receives still write to them
    for i, got in enumerate(kept):
        values = data(N, "f4", i)
        arriving = ours.Irecv(got, before, 6) if i % 3 else None
        sent = ours.Isend(values, behind, 6)
        if arriving is None:
            ours.Recv(got, before, 6)
        elif i % 3 == 1:
            arriving.Wait()
        else:
            arriving.Free()
        sent.Wait()
    ours.Barrier()
    until = monotonic() + 10
    while not _engine.is_drained(ours) and monotonic() < until:
        pass
    assert agree(_engine.is_drained(ours))
