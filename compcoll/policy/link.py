"""The bandwidth between two ranks, measured in some milliseconds by MPI's own messages."""

from __future__ import annotations

from time import perf_counter, sleep

import numpy as np
from mpi4py import MPI

__all__ = ["byte_seconds"]

#: Bytes of the smallest and the largest message, and seconds that one has to take to tell a bandwidth: a
#: network's buckets let short ones pass at once.
LEAST_NBYTES, MOST_NBYTES, SECONDS = 1 << 20, 64 << 20, 3e-3
#: Largest ratio of the second message's time to the first; above it the measurement was disturbed.
DISTURBED = 1.5


def byte_seconds(comm: MPI.Intracomm, peer: int) -> float:
    """Measure the time per byte while rank 0 and a peer exchange messages; collective.

    Parameters
    ----------
    comm : MPI.Intracomm
        Communicator without other messages in flight.
    peer : int

    Returns
    -------
    float
        Seconds per byte, equal on all ranks.
    """
    found = np.zeros(1)
    if comm.rank in (0, peer):
        found[0] = _exchange(comm, peer if comm.rank == 0 else 0)
    request = comm.Ibcast(found)
    while not request.Test():  # a wait by polling would take cores from the two ranks
        sleep(1e-4)
    return float(found[0])


def _exchange(comm: MPI.Intracomm, other: int) -> float:
    """Seconds that a byte takes in the second message that is long enough: buckets are empty by then."""
    nbytes = LEAST_NBYTES
    while True:
        send, recv = np.empty(nbytes, np.uint8), np.empty(nbytes, np.uint8)
        spent = _seconds(comm, other, send, recv)
        if spent >= SECONDS or nbytes >= MOST_NBYTES:
            again = _seconds(comm, other, send, recv)
            return (again if again < DISTURBED * spent else spent) / nbytes
        nbytes *= 4


def _seconds(comm: MPI.Intracomm, other: int, send: np.ndarray, recv: np.ndarray) -> float:
    """Measure an exchange at the end that is later."""
    mine, theirs = np.zeros(1), np.zeros(1)
    comm.Sendrecv(send[:1], other, recvbuf=recv[:1], source=other)
    start = perf_counter()
    comm.Sendrecv(send, other, recvbuf=recv, source=other)
    mine[0] = perf_counter() - start
    comm.Sendrecv(mine, other, recvbuf=theirs, source=other)
    return float(max(mine[0], theirs[0]))
