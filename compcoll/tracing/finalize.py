"""The beginning and the end of a program, where its ranks talk about what they record.

No rank waits for ever for another that does not reach its end: a rank that fails takes no part.
"""

from __future__ import annotations

import sys
from os import sched_yield
from time import perf_counter

import numpy as np
from mpi4py import MPI
from mpi4py.run import set_abort_status

from compcoll.tracing.clock import Reading, answer, compare, follow

__all__ = ["PATIENCE", "compare_all", "end_all", "gather", "has_failed", "line"]

#: Seconds that a rank waits for others after its own end.
PATIENCE = 10.0
_TAG = 0


def compare_all(comm: MPI.Intracomm) -> Reading:
    """Offset of this rank's clock; collective."""
    if comm.rank:
        return answer(comm)
    for peer in range(1, comm.size):
        compare(comm, peer)
    return _own()


def gather(comm: MPI.Intracomm, values: list[float], clocks: bool) -> tuple[np.ndarray, int, Reading | None]:
    """At the end: on rank 0 the sum of what the ranks give, and how many came in time.

    Parameters
    ----------
    values : list of float
    clocks : bool
        Whether to compare clocks again; the third of the results is how far this one is off.
    """
    until, mine = perf_counter() + PATIENCE, np.array(values, np.float64)
    if comm.rank == 0:
        return *_gathered(comm, mine, clocks, until), _own() if clocks else None
    reading = None
    try:
        follow(comm.Isend(mine, 0, _TAG), until)
        reading = answer(comm, until) if clocks else None
    except TimeoutError:
        pass
    return mine, 1, reading


def _gathered(comm: MPI.Intracomm, total: np.ndarray, clocks: bool, until: float) -> tuple[np.ndarray, int]:
    ranks, theirs, status = 1, np.empty_like(total), MPI.Status()
    while ranks < comm.size and perf_counter() < until:
        if not comm.Iprobe(tag=_TAG, status=status):
            sched_yield()
            continue
        comm.Recv(theirs, status.source, _TAG)
        total += theirs
        ranks += 1
        if clocks:
            try:
                compare(comm, status.source, until)
            except TimeoutError:
                break
    return total, ranks


def _own() -> Reading:
    return Reading(perf_counter(), 0.0, 0.0)


def line(total: np.ndarray, ranks: int, size: int) -> str:
    """Summary of the program, for its user.

    Parameters
    ----------
    total : array of float64
        The sum of `compcoll.tracing.tally.Tally.values` over ``ranks`` of ``size`` ranks.
    """
    calls, accelerated, nbytes, wire, _, seconds = total.tolist()
    ratio = nbytes / wire if wire else 1.0
    whom = f"{size} rank{'s' * (size > 1)}"
    if ranks != size:
        whom = f"{ranks} of {whom}, the others have not ended yet"
    return (
        f"compcoll: {calls:.0f} calls, {accelerated:.0f} accelerated, {nbytes:.0f} -> {wire:.0f} bytes "
        f"({ratio:.2f}x), {seconds:.3f} s in calls; sums over {whom}"
    )


def end_all(problem: BaseException) -> None:
    """Have MPI end all ranks when Python has ended, as ``python -m mpi4py`` does."""
    set_abort_status(problem if isinstance(problem, (SystemExit, KeyboardInterrupt)) else 1)


def has_failed() -> bool:
    """Whether an uncaught exception has ended the program; in a dialogue one ends a line."""
    return hasattr(sys, "last_value") and not (hasattr(sys, "ps1") or sys.flags.interactive)
