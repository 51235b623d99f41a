"""Nonblocking and persistent calls on device memory, of all ranks or of some."""

import numpy as np
import pytest
from common import same, walk
from mpi4py import MPI

import compcoll

N = 9000
pytestmark = pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="a single rank sends nothing")


@pytest.mark.parametrize("some", [False, True], ids=["all", "some"])
@pytest.mark.parametrize("persistent", [False, True])
def test_collectives(comm, agree, device, persistent, some):
    """A rank's memory is its own affair."""
    c, size = compcoll.Comm(comm, "lossless", min_nbytes=0), comm.size
    place = (lambda a: a) if some and comm.rank % 2 else (lambda a: device.array(a))
    cases = [
        ("Alltoall", walk(comm.rank, N * size), N * size, lambda s, r: (s, r)),
        ("Allgather", walk(comm.rank, N), N * size, lambda s, r: (s, r)),
        ("Allreduce", walk(comm.rank, N).round(1), N, lambda s, r: (s, r)),
    ]
    requests, gots, sent = [], [], []
    for op, mine, n, args in cases:
        got = place(np.zeros(n, "f4"))
        gots.append(got)
        sent.append(place(mine))  # mpi4py keeps no summands while a request is under way
        name = f"{op}_init" if persistent else f"I{op.lower()}"
        requests.append(getattr(c, name)(*args(sent[-1], got)))
    for _ in range(1 + persistent):
        if persistent:
            MPI.Prequest.Startall(requests)
        MPI.Request.Waitall(requests)
    for (op, mine, n, args), got in zip(cases, gots, strict=True):
        want = np.zeros(n, "f4")
        getattr(comm, op)(*args(mine, want))
        close = (
            np.allclose(np.asarray(got), want, rtol=1e-5, atol=1e-4) if op == "Allreduce" else same(got, want)
        )
        assert agree(close), op


def test_messages(comm, agree, device):
    c, before, behind = (
        compcoll.Comm(comm, "lossless", min_nbytes=0),
        (comm.rank - 1) % comm.size,
        (comm.rank + 1) % comm.size,
    )
    sends = [c.Isend, c.Issend]
    for send in sends:
        got = device.array(np.zeros(30 * N, "f4"))
        requests = [c.Irecv(got, before, 3), send(device.array(walk(comm.rank, 30 * N)), behind, 3)]
        MPI.Request.Waitall(requests)
        assert agree(same(got, walk(before, 30 * N)))
    got = device.array(np.zeros(N, "f4"))
    requests = [c.Recv_init(got, before, 4), c.Send_init(device.array(walk(comm.rank, N)), behind, 4)]
    for _ in range(2):
        MPI.Prequest.Startall(requests)
        MPI.Request.Waitall(requests)
    assert agree(same(got, walk(before, N)))
