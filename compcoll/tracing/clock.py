"""Rank 0's clock as the others see it, by the shortest of several pings."""

from __future__ import annotations

from math import inf
from os import sched_yield
from time import perf_counter
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

__all__ = ["Reading", "answer", "compare", "follow"]

_PINGS = 16
_PING, _PONG, _RESULT = 1, 2, 3


class Reading(NamedTuple):
    """Offset of a clock.

    Attributes
    ----------
    at : float
        When that was found, by the clock itself.
    offset : float
        Its seconds minus those of rank 0.
    ping : float
        Seconds that the shortest ping took to go and come back; the offset is known to half of that.
    """

    at: float
    offset: float
    ping: float


def follow(request: MPI.Request, until: float) -> None:
    """Wait for a request; TimeoutError after ``until`` of `time.perf_counter`."""
    while not request.Test():
        if perf_counter() > until:
            raise TimeoutError
        sched_yield()


def compare(comm: MPI.Intracomm, peer: int, until: float = inf) -> None:
    """On rank 0: find how far the clock of another rank is off, and tell it; it has to `answer`."""
    ours, theirs = np.zeros(1), np.zeros(1)
    best = Reading(0.0, 0.0, inf)
    for _ in range(_PINGS):
        sent = perf_counter()
        ping = comm.Isend(ours, peer, _PING)
        follow(comm.Irecv(theirs, peer, _PONG), until)
        took = perf_counter() - sent
        follow(ping, until)
        if took < best.ping:
            best = Reading(float(theirs[0]), float(theirs[0]) - (sent + took / 2), took)
    follow(comm.Isend(np.array(best), peer, _RESULT), until)


def answer(comm: MPI.Intracomm, until: float = inf) -> Reading:
    """On another rank: answer rank 0's pings; how far this clock is off."""
    theirs, ours, result = np.zeros(1), np.zeros(1), np.zeros(3)
    for _ in range(_PINGS):
        follow(comm.Irecv(theirs, 0, _PING), until)
        ours[0] = perf_counter()
        follow(comm.Isend(ours, 0, _PONG), until)
    follow(comm.Irecv(result, 0, _RESULT), until)
    return Reading(*result.tolist())
