"""What ranks get of cores and of the network while all of them are at work, measured."""

from __future__ import annotations

import os
from collections.abc import Callable
from math import inf
from time import perf_counter, process_time

import numpy as np
from mpi4py import MPI

from compcoll.runtime.simulated import Link

__all__ = ["leaders_of", "measure_patterns", "measure_sharing"]

#: Sizes of messages: what socket buffers hold, and what they do not.
NBYTES = (1 << 20, 4 << 20)
#: Pieces of those that are sent without blocking, as chunks are.
PIECE_NBYTES = 256 << 10
REPEATS = 4


def leaders_of(comm: MPI.Intracomm) -> list[int]:
    """For each rank the first one of its node; collective."""
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    leaders = comm.allgather(node.bcast(comm.rank))
    node.Free()
    return leaders


def measure_sharing(comm: MPI.Intracomm, seconds: float = 0.1) -> float:
    """How many times longer work takes while all ranks work, the most on any of them; collective."""
    sample = np.ones(1 << 12)
    comm.Barrier()
    start, own = perf_counter(), process_time()
    while (spent := perf_counter() - start) < seconds:
        sample.sum()
    return max(1.0, comm.allreduce(spent / max(process_time() - own, 1e-9), MPI.MAX))


def measure_patterns(comm: MPI.Intracomm, network: Link) -> dict[str, list[tuple[int, float]]]:
    """What exchanges of all ranks at once get of the network; see `MachineProfile`; collective.

    Nothing for two ranks, whose exchange gives the bandwidth, and where ranks share nodes.
    """
    rank, size = comm.rank, comm.size
    if size < 3 or len(set(leaders_of(comm))) < size:
        return {}
    steps = range(1, min(size, 4))
    around = [((rank + d) % size, (rank - d) % size) for d in steps]
    patterns: dict[str, Callable[[np.ndarray, np.ndarray], object]] = {
        "shift": lambda send, recv: _in_turn(comm, around, send, recv),
        "ring": lambda send, recv: _in_turn(comm, around[:1] * len(steps), send, recv),
        "all": lambda send, recv: _at_once(comm, around, send, recv),
    }
    if not size & (size - 1):
        partners = [(rank ^ d, rank ^ d) for d in steps]
        patterns["pairs"] = lambda send, recv: _in_turn(comm, partners, send, recv)
    return {
        name: [(n, _share(comm, network, exchange, n, len(steps))) for n in NBYTES]
        for name, exchange in patterns.items()
    }


def _in_turn(comm: MPI.Intracomm, peers: list[tuple[int, int]], send: np.ndarray, recv: np.ndarray) -> None:
    """Blocking calls, one after the other."""
    for dest, source in peers:
        comm.Sendrecv(send, dest, recvbuf=recv, source=source)


def _at_once(comm: MPI.Intracomm, peers: list[tuple[int, int]], send: np.ndarray, recv: np.ndarray) -> None:
    """All messages in pieces and under way together, while whoever waits leaves its core to others."""
    pieces = range(0, send.size, PIECE_NBYTES)
    requests = [comm.Irecv(recv[i : i + PIECE_NBYTES], source) for i in pieces for _, source in peers]
    requests += [comm.Isend(send[i : i + PIECE_NBYTES], dest) for i in pieces for dest, _ in peers]
    while not MPI.Request.Testall(requests):
        os.sched_yield()


def _share(
    comm: MPI.Intracomm, network: Link, exchange: Callable, nbytes: int, messages: int
) -> float:  # fmt: skip
    """Part of the bandwidth that a round of exchanges reaches at best."""
    send, recv = np.ones(nbytes, np.uint8), np.empty(nbytes, np.uint8)
    best = inf
    for _ in range(REPEATS):
        comm.Barrier()
        start = perf_counter()
        exchange(send, recv)
        best = min(best, comm.allreduce(perf_counter() - start, MPI.MAX))
    return min(1.0, messages * (nbytes / network.bandwidth + network.latency) / best)
