"""What the benchmarks of `osu` time: one operation a module, and what these share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
from mpi4py import MPI

from .data import Source

__all__ = [
    "COLLECTIVES", "MESSAGES", "OPERATIONS", "WINDOW", "Case", "Operation", "in_window", "load", "partner_of",
    "peer_of", "rounding",
]  # fmt: skip

#: Of all ranks.
COLLECTIVES = (
    "allgather", "allgatherv", "allreduce", "alltoall", "alltoallv", "barrier", "bcast", "gather", "gatherv",
    "reduce", "reduce_scatter", "scatter", "scatterv",
)  # fmt: skip
#: Between two ranks.
MESSAGES = ("bibw", "bw", "latency", "mbw_mr", "multi_lat")
OPERATIONS = tuple(sorted(COLLECTIVES + MESSAGES))
#: Messages on their way at once in the bandwidth tests; OSU has 64, which is much memory for large ones.
WINDOW = 16


@dataclass
class Case:
    """One operation at one message size, ready to be called.

    Attributes
    ----------
    call : callable
        Does the operation on the communicator that it is given.
    result : array
        What this rank received, of the source's library; empty where it receives nothing.
    moved : float
        Bytes that the busiest rank has to send or receive.
    reset : callable
        Restores the input where a call overwrites it; not timed.
    repeats : int
        Messages in a row in one call; the time of a row is that of one.
    rounding : float
        Error that the additions of a reduction can make.
    """

    call: Callable[[MPI.Comm], object]
    result: Any
    moved: float
    reset: Callable[[], object] = field(default=lambda: None)
    repeats: int = 1
    rounding: float = 0.0


#: Prepares the buffers on one rank: communicator, source of values, number of values per message.
Operation = Callable[[MPI.Comm, Source, int], Case]


def load(name: str) -> Operation:
    """The operation of that name, from the module of that name."""
    if name not in OPERATIONS:
        raise ValueError(f"unknown operation {name!r}; known are {', '.join(OPERATIONS)}")
    return getattr(import_module(f".{name}", __package__), name)


def rounding(comm: MPI.Comm, send: np.ndarray) -> float:
    """Largest error that additions over all ranks can make; 0 for integers."""
    if send.dtype.kind != "f":
        return 0.0
    largest = comm.allreduce(float(np.abs(send).max()), MPI.MAX)
    return comm.size**2 * largest * float(np.finfo(send.dtype).eps)


def peer_of(comm: MPI.Comm) -> int | None:
    """The partner of a rank in a benchmark of two ranks, None for those that watch."""
    if comm.size < 2:
        raise ValueError("messages from rank 0 to rank 1 need 2 ranks, and there is 1: mpiexec -n 2")
    return 1 - comm.rank if comm.rank < 2 else None


def in_window(comm) -> bool:
    """Whether messages may all be on their way at once: not where arrays go through the host first."""
    return isinstance(comm, MPI.Comm)


def partner_of(comm: MPI.Comm) -> int | None:
    """The partner of a rank where those of the first half and those of the second are pairs."""
    if comm.size < 2:
        raise ValueError("pairs of ranks need 2 ranks, and there is 1: mpiexec -n 2")
    half = comm.size // 2
    return None if comm.rank >= 2 * half else (comm.rank + half) % (2 * half)
