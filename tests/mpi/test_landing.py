"""Nonblocking receives of what is in one piece: plain, in an envelope, and damaged."""

import numpy as np
import pytest
from common import bits, data
from mpi4py import MPI

import compcoll
from compcoll.mpi.envelopes import seal

N = 3001
pytestmark = pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="needs two ranks")


@pytest.fixture
def ours(comm):
    return compcoll.Comm(comm, min_nbytes=0)


def received(comm, ours, message, dtype="f4", n=N):
    """What a nonblocking receive gets of bytes that the rank before sends, and the status of its request."""
    got, status = np.zeros(n, dtype), MPI.Status()
    arriving = ours.Irecv(got, (comm.rank - 1) % comm.size, 5)
    comm.Send([message, MPI.BYTE], (comm.rank + 1) % comm.size, 5)
    arriving.Wait(status)
    return got, status


def envelope(values, codec="lossless", step=None):
    frame = np.asarray(compcoll.codec(codec).encode(values)).reshape(-1)
    return seal(values.reshape(-1), step or values.size, 0, frame)


@pytest.mark.parametrize("codec", ["lossless", "raw", "zfp:rate=8", "int8"])
@pytest.mark.parametrize("room", [N, N + 7])
def test_an_envelope(comm, ours, agree, codec, room):
    values = data(N, "f4", 3)
    got, status = received(comm, ours, envelope(values, codec), n=room)
    want = compcoll.decode(compcoll.codec(codec).encode(values))
    assert agree(bits(got[:N]) == bits(want) and not got[N:].any())
    assert agree(status.Get_count(MPI.FLOAT) == N and status.tag == 5)
    assert agree(ours.report.op == "Recv" and ours.report.error_bound >= np.abs(got[:N] - values).max())


def test_an_envelope_of_three_dimensions(comm, ours, agree):
    values = data(8 * 12 * 20, "f8", 3).reshape(8, 12, 20)
    got, _ = received(comm, ours, envelope(values, "zfp:rate=16"), "f8", values.size)
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
    message = envelope(data(N, "f4", 5))
    place = {"magic": 24, "shape": 24 + 30, "payload": 24 + 80 + 1000, "last": message.size - 3}[where]
    message[place] ^= 0x40
    with pytest.raises(MPI.Exception):
        received(comm, ours, message)
    comm.Barrier()


def test_a_damaged_opening(comm, ours):
    """Then it is an odd number of bytes, which no message of larger elements has."""
    message = envelope(data(N, "f4", 6))
    message[8] ^= 1
    with pytest.raises(MPI.Exception):
        received(comm, ours, message)
    comm.Barrier()


@pytest.mark.parametrize("plain", [False, True])
def test_truncation(comm, ours, plain):
    values = data(N, "f4", 7)
    with pytest.raises(MPI.Exception) as raised:
        received(comm, ours, values.view(np.uint8) if plain else envelope(values), n=N - 100)
    assert raised.value.Get_error_class() == MPI.ERR_TRUNCATE
    comm.Barrier()


def test_what_is_cancelled(comm, ours, agree):
    got = np.zeros(N, "f4")
    status, arriving = MPI.Status(), ours.Irecv(got, comm.rank, 6)
    arriving.Cancel()
    arriving.Wait(status)
    assert agree(status.Is_cancelled() and not got.any())


def test_no_receive_is_remembered(comm, ours, agree):
    posted = ours._context.channel.lost.posted
    before = len(posted)
    for _ in range(3):
        received(comm, ours, envelope(data(N, "f4", 8)))
        received(comm, ours, data(N, "f4", 8).view(np.uint8))
    assert agree(len(posted) == before)
