"""Bytes that change on the wire: an error on the ranks that need them, no hang, and a right next call."""

from contextlib import nullcontext

import internals
import numpy as np
import pytest
from common import bits, close_sum, data, fails
from mpi4py import MPI

import compcoll
from compcoll import FrameError, Policy, Rule
from compcoll.codecs import Codec, registry

N = 40_001
pytestmark = pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="needs two ranks")

CALLS = {
    "Bcast": lambda c, a, out: c.Bcast(a, 0),
    "Allgather": lambda c, a, out: c.Allgather(a, out),
    "Alltoall": lambda c, a, out: c.Alltoall(out.copy(), out),
    "Allreduce": lambda c, a, out: c.Allreduce(a, a.copy()),
    "Reduce_scatter_block": lambda c, a, out: c.Reduce_scatter_block(out, a.copy()),
    "Gather": lambda c, a, out: c.Gather(a, out, c.size - 1),
    "Alltoallv": lambda c, a, out: c.Alltoallv([out.copy(), [N] * c.size], [out, [N] * c.size]),
    "Sendrecv": lambda c, a, out: c.Sendrecv(a, (c.rank + 1) % c.size, 0, a.copy(), (c.rank - 1) % c.size, 0),
}


@pytest.fixture(params=["ring", "direct"])
def ours(comm, request):
    rules = (Rule(algorithm=request.param, chunk_nbytes=16384),)
    return compcoll.Comm(comm, policy=Policy("zfp:rate=12", min_nbytes=0, rules=rules))


@pytest.fixture
def recv_hook():
    """Function that sets a hook on the messages that this rank receives."""
    yield internals.set_recv_hook
    internals.set_recv_hook(None)


@pytest.mark.parametrize("where", [10, 60, 100, -3], ids=["name", "size", "payload", "end"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_flipped_byte(comm, ours, agree, recv_hook, call, where):
    """One damaged frame, received by the last rank, is an error there, and the next call is right."""
    damaged = []

    def damage(message: np.ndarray) -> None:
        if message.size and not damaged:
            damaged.append(True)
            message[where] ^= 0x10

    if comm.rank == comm.size - 1:
        recv_hook(damage)
    failed = False
    try:
        call(ours, data(N, "f4", comm.rank), data(N * comm.size, "f4", comm.rank))
    except (FrameError, MPI.Exception) as problem:  # of a message, and of a collective
        failed = isinstance(problem, FrameError) or problem.Get_error_class() == compcoll.errors.FRAME
    recv_hook(None)
    assert agree(failed or comm.rank != comm.size - 1)
    total, parts = np.zeros(N, "i4"), [data(N, "i4", r) for r in range(comm.size)]
    ours.Allreduce(parts[comm.rank], total)
    assert agree(close_sum(total, parts))


def test_error_spreads_to_whom_it_concerns(comm, agree, recv_hook):
    """A chain's later ranks raise an error too if an earlier rank could not read its frame."""
    ours = compcoll.Comm(comm, policy=Policy("lossless", min_nbytes=0, rules=(Rule(algorithm="chain"),)))
    if comm.rank == 1:
        recv_hook(lambda message: message.fill(0))
    failed = False
    try:
        ours.Bcast(data(N, "f4", comm.rank), 0)
    except MPI.Exception as problem:
        failed = problem.Get_error_class() == compcoll.errors.FRAME
    recv_hook(None)
    assert agree(failed == (comm.rank > 0))


class Failing(Codec):
    """Codec of another package, which fails on rank 0."""

    name = "failing"
    lossless = True

    def encode_payload(self, src, dst):
        if MPI.COMM_WORLD.rank == 0:
            raise ZeroDivisionError
        dst[: src.nbytes] = src.reshape(-1).view(np.uint8)
        return src.nbytes, 0.0, (0, 0)

    def decode_payload(self, info, payload, dst):
        dst.reshape(-1).view(np.uint8)[:] = payload
        return 0


def test_failing_encoder(comm, agree, monkeypatch):
    """An error of one rank's encoder is raised there and on all ranks that wait for its data."""
    monkeypatch.setitem(registry._known, "failing", Failing)
    ours = compcoll.Comm(comm, "failing", min_nbytes=0)
    for name in ("Bcast", "Allreduce"):
        with fails("CODEC", "ZeroDivisionError") if comm.rank == 0 else fails("FRAME"):
            CALLS[name](ours, data(N, "f4", comm.rank), None)
    expected = fails("CODEC", "ZeroDivisionError") if comm.rank == 0 else fails("FRAME")
    with expected if comm.rank < 2 else nullcontext():
        CALLS["Sendrecv"](ours, data(N, "f4", comm.rank), None)
    comm.Barrier()
    got = data(N, "f4", comm.rank)
    ours.using("lossless").Bcast(got, 0)
    assert agree(bits(got) == bits(data(N, "f4", 0)))
