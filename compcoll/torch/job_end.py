"""The end of a job: ranks wait for each other, and report an error before they abort the others."""

from __future__ import annotations

import atexit
import sys
import time
from collections.abc import Sequence
from functools import cache
from math import inf
from types import TracebackType

from mpi4py import MPI

from compcoll.engine import _engine
from compcoll.engine.finalize import before_finalize
from compcoll.launch import is_launched
from compcoll.torch import groups
from compcoll.torch.completion_thread import wait_for_callbacks
from compcoll.torch.group_state import GRACE
from compcoll.torch.store import end_departures

__all__ = ["add_job", "at_exit", "end_job", "meet_at_end", "post_exceptions"]

#: Seconds for the process of a rank that raised to end first, under torchrun and its like.
_LAST = 3.0
#: Communicators for `meet_at_end`, by the ranks of groups that are not part of another one.
_jobs: dict[frozenset[int], MPI.Intracomm] = {}


def add_job(comm: MPI.Intracomm, ranks: Sequence[int]) -> None:
    """Have these ranks of COMM_WORLD, a group's, meet before MPI ends; collective over them."""
    if not any(known.issuperset(ranks) for known in _jobs):
        _jobs[frozenset(ranks)] = comm.Dup()
        before_finalize(meet_at_end)


def meet_at_end(seconds: float = inf) -> None:
    """Wait at most ``seconds`` until the ranks of all groups are at the ends of their processes.

    Ranks that have destroyed their groups may still write a checkpoint.
    """
    until = time.monotonic() + seconds
    with _engine.plain_calls():
        requests = [comm.Ibarrier() for comm in _jobs.values()]
        _jobs.clear()
        while not MPI.Request.Testall(requests) and time.monotonic() < until:
            time.sleep(0.01)


@cache
def post_exceptions() -> None:
    """Post a departure from all groups at an uncaught exception."""
    hook = sys.excepthook

    def tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        hook(kind, error, trace)
        if not MPI.Is_finalized():
            for group in groups.all_groups():
                group.post_departure(f"has ended with {kind.__name__}: {error}")

    sys.excepthook = tell


def end_job() -> None:
    """Leave the store when the default group ends, unless it holds the reason of an error."""
    if not groups.lost_groups() and not any(group.broken for group in groups.all_groups()):
        end_departures(MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size())


@atexit.register
def at_exit() -> None:
    """Post departures, and abort if operations may never end: MPI_Finalize would wait for them."""
    if MPI.Is_finalized():
        return
    wait_for_callbacks()
    for group in groups.all_groups():
        group.post_departure("has ended")
    lost = [group for group in (*groups.lost_groups(), *groups.all_groups()) if group.broken]
    if lost:
        meet_at_end(max(group.timeout for group in lost))
        sys.stdout.flush()
        sys.stderr.flush()
        # Ranks that wait in MPI alone print their errors meanwhile. The rank that raised ends first: torchrun
        # takes the process that ends first for the cause.
        time.sleep(GRACE if is_launched() else _LAST)
        MPI.COMM_WORLD.Abort(1)
