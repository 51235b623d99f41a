"""Links, measured by MPI itself: what messages take between nodes and inside one."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from statistics import median
from time import perf_counter, process_time, sleep

import numpy as np
from mpi4py import MPI

from compcoll.runtime.links import Link

__all__ = ["leaders_of", "measure_links"]

#: One node's memory, where there is no second rank to measure with.
MEMORY = Link(1e-6, 8e9)
#: Networks with more latency go through the kernel, whose work per byte is counted.
KERNEL_LATENCY = 3e-6
#: Pieces of messages that are sent without blocking, as chunks are.
PIECE_NBYTES = 256 << 10
#: Message whose cost to processors is measured, and the pause between two looks at it, in seconds.
CPU_NBYTES, PAUSE = 4 << 20, 5e-5


def leaders_of(comm: MPI.Intracomm) -> list[int]:
    """For each rank the first one of its node; collective."""
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    leaders = comm.allgather(node.bcast(comm.rank))
    node.Free()
    return leaders


def measure_links(comm: MPI.Intracomm, seconds: float = 0.1) -> tuple[Link, Link]:
    """The links between nodes and inside a node, the same on all ranks; collective.

    Where all ranks share a node, its link stands for the network too.
    """
    leaders = leaders_of(comm)
    near = next((r for r in range(1, comm.size) if leaders[r] == leaders[0]), None)
    far = next((r for r in range(1, comm.size) if leaders[r] != leaders[0]), None)
    inside = _measure_link(comm, near, seconds) if near is not None else MEMORY
    between = _measure_link(comm, far, seconds) if far is not None else inside
    if far is not None and between.latency > KERNEL_LATENCY:
        between = replace(between, cpu=_measure_cpu(comm))
    return between, inside


def _measure_link(comm: MPI.Intracomm, peer: int, seconds: float) -> Link:
    """Rank 0 and a peer exchange messages, both ways at once as collectives do."""
    link = None
    if comm.rank in (0, peer):
        other = peer if comm.rank == 0 else 0
        latency = _exchange(comm, other, 8, 20)
        nbytes, spent = 256 << 10, 0.0
        while spent < seconds / 4 and nbytes < 64 << 20:
            nbytes *= 2
            mine = _exchange(comm, other, nbytes, 2)
            spent = max(mine, comm.sendrecv(mine, other, source=other))  # the same at both ends
        mine = _exchange(comm, other, nbytes, 12)
        spent = min(spent, max(mine, comm.sendrecv(mine, other, source=other)))
        link = Link(latency, nbytes / max(spent - latency, 1e-9))
    _all_done(comm)  # the others leave the cores to these two: MPI waits with all its might
    return comm.bcast(link)


def _exchange(comm: MPI.Intracomm, other: int, nbytes: int, repeats: int) -> float:
    """Least seconds in which two ranks send each other a message at the same time."""
    send, recv = np.ones(nbytes, np.uint8), np.empty(nbytes, np.uint8)
    best = inf
    for _ in range(repeats + 1):
        comm.Sendrecv(send[:1], other, recvbuf=recv[:1], source=other)
        start = perf_counter()
        comm.Sendrecv(send, other, recvbuf=recv, source=other)
        best = min(best, perf_counter() - start)
    return best


def _measure_cpu(comm: MPI.Intracomm) -> float:
    """Seconds that a byte costs the processors of both ends in the kernel and in MPI; collective.

    Where waiting takes no processor's time, unlike in MPI's own calls.
    """
    rank, size = comm.rank, comm.size
    steps = range(1, min(size, 4))
    send, recv = np.ones(CPU_NBYTES, np.uint8), np.empty(CPU_NBYTES, np.uint8)
    pieces = range(0, CPU_NBYTES, PIECE_NBYTES)
    seconds = []
    for _ in range(5):
        comm.Barrier()
        own = process_time()
        requests = [comm.Irecv(recv[i : i + PIECE_NBYTES], (rank - d) % size) for i in pieces for d in steps]
        requests += [comm.Isend(send[i : i + PIECE_NBYTES], (rank + d) % size) for i in pieces for d in steps]
        while not MPI.Request.Testall(requests):
            sleep(PAUSE)
        seconds.append(process_time() - own)
        _all_done(comm)
    return comm.allreduce(median(seconds), MPI.SUM) / (size * len(steps) * 2 * CPU_NBYTES)


def _all_done(comm: MPI.Intracomm) -> None:
    """A barrier that leaves the cores to those who are late."""
    request = comm.Ibarrier()
    while not request.Test():
        sleep(1e-3)
