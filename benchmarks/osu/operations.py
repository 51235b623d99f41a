"""The operations that the benchmarks time, in one table like OSU's.

Each entry takes a communicator, a source of values and the number of values in the buffer that a rank passes,
prepares the buffers on one rank, and returns a `Case`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import numpy as np
from mpi4py import MPI

from .data import Source

__all__ = [
    "COLLECTIVES",
    "MESSAGES",
    "NONBLOCKING",
    "OPERATIONS",
    "WINDOW",
    "WINDOWED",
    "Case",
    "Operation",
    "in_window",
    "partner_of",
    "peer_of",
    "rounding",
]

#: Messages in flight at once in the bandwidth tests. OSU has 64, which need much memory if they are large.
WINDOW = 16


@dataclass
class Case:
    """One operation at one size, ready to be called.

    Attributes
    ----------
    call : callable
        Does the operation on a given communicator.
    result : array
        Receive buffer, of the source's library; empty if this rank receives nothing.
    moved : float
        Bytes that the busiest rank has to send or receive.
    reset : callable
        Restores the input if a call overwrites it; not timed.
    repeats : int
        Messages in a row in one call; reported times are per message.
    rounding : float
        Error that the additions of a reduction can make.
    parts : int
        Messages in the buffer that a rank passes.
    """

    call: Callable[[MPI.Comm], object]
    result: Any
    moved: float
    reset: Callable[[], object] = field(default=lambda: None)
    repeats: int = 1
    rounding: float = 0.0
    parts: int = 1

    def rounded(self, n: int) -> int:
        """Number of values in the buffer if n are requested."""
        return self.parts * max(1, n // self.parts)


#: Prepares the buffers on one rank: communicator, source of values, number of values in the buffer.
Operation = Callable[[MPI.Comm, Source, int], Case]


def rounding(comm: MPI.Comm, send: np.ndarray) -> float:
    """Largest error that additions over all ranks can make; 0 for integers."""
    if send.dtype.kind != "f":
        return 0.0
    largest = comm.allreduce(float(np.abs(send).max()), MPI.MAX)
    return comm.size**2 * largest * float(np.finfo(send.dtype).eps)


def peer_of(comm: MPI.Comm) -> int | None:
    """The partner of a rank in a benchmark of two ranks; None for all other ranks."""
    if comm.size < 2:
        raise ValueError("messages from rank 0 to rank 1 need 2 ranks, and there is 1: mpiexec -n 2")
    return 1 - comm.rank if comm.rank < 2 else None


def in_window(comm) -> bool:
    """True if messages may be in flight at once, which arrays that are staged through the host cannot be."""
    return isinstance(comm, MPI.Comm)


def partner_of(comm: MPI.Comm) -> int | None:
    """The partner of a rank if ranks of the first half pair with ranks of the second half."""
    if comm.size < 2:
        raise ValueError("pairs of ranks need 2 ranks, and there is 1: mpiexec -n 2")
    half = comm.size // 2
    return None if comm.rank >= 2 * half else (comm.rank + half) % (2 * half)


# -- collectives


def _gathered(comm: MPI.Comm, values: Source, n: int, *, op: str, counted: bool, rooted: bool) -> Case:
    """Every rank's message arrives on all ranks, or on rank 0."""
    receives = not rooted or comm.rank == 0
    send, recv = values(n), values.empty(comm.size * n if receives else 0)
    target = ((recv, [n] * comm.size) if counted else recv) if receives else None
    moved = (comm.size - 1) * send.nbytes
    return Case(lambda c: getattr(c, op)(send, target), recv, moved)


def _scattered(comm: MPI.Comm, values: Source, n: int, *, op: str, counted: bool) -> Case:
    """Rank 0 sends a message to every rank."""
    part, parts = max(1, n // comm.size), comm.size
    send, recv = values(parts * part) if comm.rank == 0 else None, values.empty(part)
    source = (send, [part] * parts) if counted and comm.rank == 0 else send
    return Case(lambda c: getattr(c, op)(source, recv), recv, (parts - 1) * recv.nbytes, parts=parts)


def _alltoall(comm: MPI.Comm, values: Source, n: int, *, counted: bool) -> Case:
    """Every rank sends a message to each rank."""
    part, parts = max(1, n // comm.size), comm.size
    send, recv = values(parts * part), values.empty(parts * part)
    moved = (parts - 1) * part * values.dtype.itemsize
    if not counted:
        return Case(lambda c: c.Alltoall(send, recv), recv, moved, parts=parts)
    counts = [part] * parts
    return Case(lambda c: c.Alltoallv((send, counts), (recv, counts)), recv, moved, parts=parts)


def _alltoallw(comm: MPI.Comm, values: Source, n: int, *, axes: tuple[int, int] = (0, 1)) -> Case:
    """Redistribute slabs of a field from one axis to another by subarrays, as mpi4py-fft does."""
    before, behind = axes
    size, block = comm.size, max(1, n // comm.size)
    side = max(1, round(block ** (1 / 3)))
    extents = [max(1, block // side**2)] * 3
    extents[before] = extents[behind] = side
    part, shapes = prod(extents), []
    for cut in axes:
        shape = [extent * (1 if k == cut or k not in axes else size) for k, extent in enumerate(extents)]
        shapes.append(shape)
    basic = MPI.Datatype.fromcode(values.dtype.char)
    sends, recvs = (
        [
            basic.Create_subarray(shape, extents, [extents[k] * p * (k == axis) for k in range(3)]).Commit()
            for p in range(size)
        ]
        for shape, axis in zip(shapes, (behind, before), strict=True)
    )
    send, recv = values(size * part), values.empty(size * part)
    moved = (size - 1) * part * values.dtype.itemsize
    return Case(lambda c: c.Alltoallw([send, sends], [recv, recvs]), recv, moved, parts=size * side**2)


def _bcast(comm: MPI.Comm, values: Source, n: int) -> Case:
    """Rank 0 sends its message to all ranks."""
    original, buffer = values.host(values(n)), values(n)

    def reset() -> None:
        # A lossy broadcast writes the decoded values at its root as well.
        if comm.rank == 0:
            values.arrays.write(buffer, original)

    return Case(lambda c: c.Bcast(buffer, root=0), buffer, original.nbytes, reset)


def _summed(comm: MPI.Comm, values: Source, n: int, *, op: str) -> Case:
    """The sum of all messages arrives on all ranks, or on rank 0, or a part of it on each rank."""
    parts = comm.size if op == "Reduce_scatter_block" else 1
    part = max(1, n // parts)
    send = values(parts * part)
    recv = values.empty(part if op != "Reduce" or comm.rank == 0 else 0)
    target = recv if op != "Reduce" or comm.rank == 0 else None
    moved = (2 if op == "Allreduce" else 1) * (comm.size - 1) / comm.size * send.nbytes
    limit = rounding(comm, values.host(send))
    return Case(lambda c: getattr(c, op)(send, target), recv, moved, rounding=limit, parts=parts)


def _barrier(comm: MPI.Comm, values: Source, n: int) -> Case:
    """Barrier: no bytes are sent, so that sizes do not matter."""
    return Case(lambda c: c.Barrier(), values.empty(0), 0.0)


# -- messages


def _latency(comm: MPI.Comm, values: Source, n: int, *, peer_of: Callable[[MPI.Comm], int | None]) -> Case:
    """Ping-pong between a rank and its peer; the reported time is one message's."""
    peer = peer_of(comm)
    send, recv = values(n), values.empty(n if peer is not None else 0)

    def call(c: MPI.Comm) -> None:
        if peer is None:
            return
        if comm.rank < peer:
            c.Send(send, peer)
            c.Recv(recv, peer)
        else:
            c.Recv(recv, peer)
            c.Send(send, peer)

    return Case(call, recv, send.nbytes, repeats=2)


def _bandwidth(
    comm: MPI.Comm,
    values: Source,
    n: int,
    *,
    peer_of: Callable[[MPI.Comm], int | None],
    pairs: bool = False,
    window: int = WINDOW,
) -> Case:
    """A window of messages to a peer, which replies when it has all; the reported time is one message's."""
    peer = peer_of(comm)
    sends = peer is not None and comm.rank < peer
    # Messages are received into one buffer, as in OSU: a window of large ones may not fit in memory.
    send, recv = values(n), values.empty(0 if sends or peer is None else n)
    answer = np.zeros(1, np.uint8)

    def call(c: MPI.Comm) -> None:
        if peer is None:
            return
        if in_window(c):
            begin = (lambda: c.Isend(send, peer)) if sends else (lambda: c.Irecv(recv, peer))
            MPI.Request.Waitall([begin() for _ in range(window)])
        else:
            for _ in range(window):
                c.Send(send, peer) if sends else c.Recv(recv, peer)
        comm.Recv(answer, peer) if sends else comm.Send(answer, peer)

    return Case(call, recv, (comm.size // 2 if pairs else 1) * send.nbytes, repeats=window)


def _both_ways(comm: MPI.Comm, values: Source, n: int, *, window: int = WINDOW) -> Case:
    """Windows of messages between ranks 0 and 1 both ways at once; the reported time is one pair's."""
    peer = peer_of(comm)
    send, recv = values(n), values.empty(n if peer is not None else 0)

    def call(c: MPI.Comm) -> None:
        if peer is None:
            return
        if in_window(c):
            arriving = [c.Irecv(recv, peer) for _ in range(window)]
            MPI.Request.Waitall(arriving + [c.Isend(send, peer) for _ in range(window)])
        else:
            for _ in range(window):
                c.Sendrecv(send, peer, recvbuf=recv, source=peer)

    return Case(call, recv, 2 * send.nbytes, repeats=window)


def _exchange(comm: MPI.Comm, values: Source, n: int) -> Case:
    """One Sendrecv of ranks 0 and 1, each of which sends and receives."""
    peer = peer_of(comm)
    send, recv = values(n), values.empty(n if peer is not None else 0)

    def call(c: MPI.Comm) -> None:
        if peer is not None:
            c.Sendrecv(send, peer, recvbuf=recv, source=peer)

    return Case(call, recv, 2 * send.nbytes)


def _request_reply(comm: MPI.Comm, values: Source, n: int) -> Case:
    """Rank 0 posts the receive of a reply, sends a request and waits; the reported time is one message's."""
    peer = peer_of(comm)
    send, recv = values(n), values.empty(n if peer is not None else 0)

    def call(c: MPI.Comm) -> None:
        if peer is None:
            return
        if comm.rank > peer:
            c.Recv(recv, peer)
            c.Send(send, peer)
        elif in_window(c):
            reply = c.Irecv(recv, peer)
            c.Send(send, peer)
            reply.Wait()
        else:
            c.Sendrecv(send, peer, recvbuf=recv, source=peer)

    return Case(call, recv, send.nbytes, repeats=2)


#: Operations of all ranks.
COLLECTIVES: dict[str, Operation] = {
    "allgather": partial(_gathered, op="Allgather", counted=False, rooted=False),
    "allgatherv": partial(_gathered, op="Allgatherv", counted=True, rooted=False),
    "allreduce": partial(_summed, op="Allreduce"),
    "alltoall": partial(_alltoall, counted=False),
    "alltoallv": partial(_alltoall, counted=True),
    "alltoallw": _alltoallw,
    "barrier": _barrier,
    "bcast": _bcast,
    "gather": partial(_gathered, op="Gather", counted=False, rooted=True),
    "gatherv": partial(_gathered, op="Gatherv", counted=True, rooted=True),
    "reduce": partial(_summed, op="Reduce"),
    "reduce_scatter": partial(_summed, op="Reduce_scatter_block"),
    "scatter": partial(_scattered, op="Scatter", counted=False),
    "scatterv": partial(_scattered, op="Scatterv", counted=True),
}
#: Operations of two ranks, or of pairs of ranks.
MESSAGES: dict[str, Operation] = {
    "bibw": _both_ways,
    "bw": partial(_bandwidth, peer_of=peer_of),
    "latency": partial(_latency, peer_of=peer_of),
    "mbw_mr": partial(_bandwidth, peer_of=partner_of, pairs=True),
    "multi_lat": partial(_latency, peer_of=partner_of),
    "request_reply": _request_reply,
    "sendrecv": _exchange,
}
#: Operations with several messages in flight at once.
WINDOWED = ("bibw", "bw", "mbw_mr")
#: Nonblocking collectives, timed beside a computation.
NONBLOCKING = tuple(f"i{op}" for op in COLLECTIVES if op != "barrier")
OPERATIONS = dict(sorted((COLLECTIVES | MESSAGES).items()))
