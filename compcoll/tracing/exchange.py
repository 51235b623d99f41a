"""Messages between ranks at the start and the end of a recording: comparing clocks and gathering sums.

`compcoll.tracing.recording` calls it. At the end no rank waits forever for another that does not reach its
own end: a rank that fails does not send its sums.
"""

from __future__ import annotations

from math import inf
from os import sched_yield
from time import perf_counter
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

__all__ = ["PATIENCE", "Reading", "compare_all", "gather"]

#: Seconds for which a rank waits for others after its own end.
PATIENCE = 10.0
_PINGS = 16
_SUMS, _PING, _PONG, _RESULT = range(4)


class Reading(NamedTuple):
    """Offset of a clock."""

    at: float  # time of the comparison, on this clock
    offset: float  # its seconds minus those of rank 0
    ping: float  # seconds of the shortest ping; the offset is known to half of it


def compare_all(comm: MPI.Intracomm) -> Reading:
    """Offset of this rank's clock; collective."""
    if comm.rank:
        return _answer(comm, inf)
    for peer in range(1, comm.size):
        _compare(comm, peer, inf)
    return Reading(perf_counter(), 0.0, 0.0)


def gather(comm: MPI.Intracomm, values: list[float], clocks: bool) -> tuple[np.ndarray, int, Reading | None]:
    """Sum numbers over the ranks that reach their end in time, and compare clocks again if requested.

    Rank 0 gets the sums, the number of ranks in them, and its `Reading`; others get their own values.
    """
    until, mine = perf_counter() + PATIENCE, np.array(values, np.float64)
    if comm.rank == 0:
        ranks = _collect(comm, mine, clocks, until)
        return mine, ranks, Reading(perf_counter(), 0.0, 0.0) if clocks else None
    try:
        _wait(comm.Isend(mine, 0, _SUMS), until)
        return mine, 1, _answer(comm, until) if clocks else None
    except TimeoutError:
        return mine, 1, None


def _collect(comm: MPI.Intracomm, total: np.ndarray, clocks: bool, until: float) -> int:
    """Add up the values of other ranks as they arrive; return the number of ranks in the sums."""
    ranks, theirs, status = 1, np.empty_like(total), MPI.Status()
    while ranks < comm.size and perf_counter() < until:
        if not comm.Iprobe(tag=_SUMS, status=status):
            sched_yield()
            continue
        comm.Recv(theirs, status.source, _SUMS)
        total += theirs
        ranks += 1
        if clocks:
            try:
                _compare(comm, status.source, until)
            except TimeoutError:
                break
    return ranks


def _compare(comm: MPI.Intracomm, peer: int, until: float) -> None:
    """Measure on rank 0 the offset of another rank's clock, and send it; that rank has to call `_answer`."""
    ours, theirs = np.zeros(1), np.zeros(1)
    best = Reading(0.0, 0.0, inf)
    for _ in range(_PINGS):
        sent = perf_counter()
        ping = comm.Isend(ours, peer, _PING)
        _wait(comm.Irecv(theirs, peer, _PONG), until)
        took = perf_counter() - sent
        _wait(ping, until)
        if took < best.ping:
            best = Reading(float(theirs[0]), float(theirs[0]) - (sent + took / 2), took)
    _wait(comm.Isend(np.array(best), peer, _RESULT), until)


def _answer(comm: MPI.Intracomm, until: float) -> Reading:
    """Answer rank 0's pings on another rank, and receive this clock's offset."""
    theirs, ours, result = np.zeros(1), np.zeros(1), np.zeros(3)
    for _ in range(_PINGS):
        _wait(comm.Irecv(theirs, 0, _PING), until)
        ours[0] = perf_counter()
        _wait(comm.Isend(ours, 0, _PONG), until)
    _wait(comm.Irecv(result, 0, _RESULT), until)
    return Reading(*result.tolist())


def _wait(request: MPI.Request, until: float) -> None:
    """Wait for a request; TimeoutError after ``until`` of `time.perf_counter`."""
    while not request.Test():
        if perf_counter() > until:
            raise TimeoutError
        sched_yield()
