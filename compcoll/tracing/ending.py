"""The end of a program: what all its ranks did, in one line of rank 0.

Nobody waits for a rank that does not come: one that ends by an error takes no part, and the first rank waits
for the others only for so long after its own end.
"""

from __future__ import annotations

import atexit
import sys
from os import sched_yield
from time import perf_counter

import numpy as np
from mpi4py import MPI
from mpi4py.run import set_abort_status

from compcoll.tracing.tally import Tally

__all__ = ["PATIENCE", "at_end", "fail", "fail_on_error", "line"]

#: Seconds that rank 0 waits for the others after its own end.
PATIENCE = 10.0
_TAG = 0

_ending: _Ending | None = None


class _Ending:
    """What is left to do when the program ends, or finalises MPI."""

    def __init__(self, world: MPI.Intracomm, tally: Tally):
        self.comm, self.tally = MPI.Intracomm(world).Dup(), tally
        # MPI_Finalize takes the attributes of this communicator away before anything else.
        keyval = MPI.Comm.Create_keyval(delete_fn=lambda comm, keyval, value: self.run())
        MPI.Intracomm(MPI.COMM_SELF).Set_attr(keyval, self)
        self.done = False
        atexit.register(self.run)

    def run(self) -> None:
        """Say what the program did; once, and not where it has failed."""
        if self.done or MPI.Is_finalized() or _failed():
            return
        self.done = True
        mine = np.array(self.tally.values, np.float64)
        if self.comm.rank:
            self._sent = mine, self.comm.Isend(mine, 0, _TAG)
            return
        total, ranks = self._gathered(mine)
        print(line(total, ranks, self.comm.size), file=sys.stderr, flush=True)

    def _gathered(self, total: np.ndarray) -> tuple[np.ndarray, int]:
        """The sum over all ranks that have come to their end in time, and how many these are."""
        until, ranks, theirs = perf_counter() + PATIENCE, 1, np.empty_like(total)
        while ranks < self.comm.size and perf_counter() < until:
            if not self.comm.Iprobe(tag=_TAG):
                sched_yield()
                continue
            self.comm.Recv(theirs, tag=_TAG)
            total += theirs
            ranks += 1
        return total, ranks


def at_end(world: MPI.Intracomm, tally: Tally) -> None:
    """Let rank 0 say at the end of the program what all ranks did; collective."""
    global _ending
    _ending = _Ending(world, tally)


def fail(problem: BaseException) -> None:
    """The program ends on this rank by an exception, and MPI is to end all of them; an exit of 0 is none.

    As ``python -m mpi4py`` has it: MPI aborts after what Python does at its end.
    """
    if isinstance(problem, SystemExit) and problem.code in (None, 0):
        return
    if _ending is not None:
        _ending.done = True
    set_abort_status(problem if isinstance(problem, (SystemExit, KeyboardInterrupt)) else 1)


def fail_on_error() -> None:
    """`fail` for each uncaught exception, but in a dialogue."""
    say = sys.excepthook

    def hook(kind, problem, traceback) -> None:
        say(kind, problem, traceback)
        if not (hasattr(sys, "ps1") or sys.flags.interactive):
            fail(problem)

    sys.excepthook = hook


def line(total: np.ndarray, ranks: int, size: int) -> str:
    """What the program did, for its user.

    Parameters
    ----------
    total : array of float64
        The sum of `Tally.values` over ``ranks`` of ``size`` ranks.
    """
    calls, accelerated, nbytes, wire, seconds = total.tolist()
    ratio = nbytes / wire if wire else 1.0
    whom = f"{size} ranks" if ranks == size else f"{ranks} of {size} ranks, the others have not ended yet"
    return (
        f"compcoll: {calls:.0f} calls, {accelerated:.0f} accelerated, {nbytes:.0f} -> {wire:.0f} bytes "
        f"({ratio:.2f}x), {seconds:.3f} s in calls; sums over {whom}"
    )


def _failed() -> bool:
    """Whether an exception has ended the program; in a dialogue they only end a line."""
    return hasattr(sys, "last_value") and not hasattr(sys, "ps1")
