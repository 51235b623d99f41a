"""The process groups of this process, and what ranks tell each other through torch's store.

MPI is of no use where ranks do not come: a rank says there that it leaves a group, and why. Others look there
once they have waited for a while.
"""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import cache
from math import inf
from threading import Lock
from types import TracebackType
from typing import Any, NamedTuple

import torch.distributed as dist
from mpi4py import MPI

from compcoll.core import errors
from compcoll.engine import _engine
from compcoll.engine.finalize import before_finalize
from compcoll.launch.pmi import ranks_of
from compcoll.launch.torchrun import missing, prefix

__all__ = [
    "MismatchError",
    "Notice",
    "Notices",
    "add",
    "add_job",
    "cores",
    "end_notices",
    "exchange",
    "forget_store",
    "meet_at_end",
    "next_serial",
    "notices",
    "remove",
    "watch_store",
]

_cores: list[Any] = []
_serials = [0]
#: Seconds for which the store is there for others that end a little later.
_SERVER_SECONDS = 1.0
#: Seconds that a look into the store may take.
_LOOK_SECONDS = 10.0


class MismatchError(dist.DistBackendError, errors.MismatchError):
    """Ranks of a group have called different operations."""


# -- groups


def add(core: Any) -> None:
    """Register a group that was made."""
    _notice_exceptions()
    _cores.append(core)


def remove(core: Any) -> None:
    """Remove a group that has ended."""
    _cores.remove(core)


def cores() -> list[Any]:
    """All groups, in the order in which they were made."""
    return list(_cores)


def next_serial(known: Iterable[int] = ()) -> int:
    """A number that no group of this rank has had; given those of all its ranks, the one to have."""
    _serials[0] = max(_serials[0], *known, 0)
    return _serials[0] + 1


@cache
def _notice_exceptions() -> None:
    """Tell the other ranks of all groups of an exception that nobody catches."""
    hook = sys.excepthook

    def tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        hook(kind, error, trace)
        if not MPI.Is_finalized():
            for core in _cores:
                core.withdraw(f"has ended with {kind.__name__}: {error}")

    sys.excepthook = tell


# -- the store


def exchange(store: Any, rank: int, size: int, mine: Any, seconds: float, what: str) -> list[Any]:
    """All ranks' objects, RuntimeError that names those which do not come in time."""
    # The store may have the keys of an earlier group with the same name.
    n = store.add(f"{prefix()}/rounds/{rank}", 1)
    keys = [f"{prefix()}/{n}/{other}" for other in range(size)]
    store.set(keys[rank], pickle.dumps(mine))
    if late := missing(store, keys, seconds):
        raise RuntimeError(f"{what}: {ranks_of(late)} of {size} did not come within {seconds:g} s")
    return [pickle.loads(store.get(key)) for key in keys]


class Notice(NamedTuple):
    """The notice of a rank that leaves a group: the first call that it does not complete, and why.

    ``waits``: it has waited for others in that call.
    """

    group: str
    rank: int
    first: int
    why: str
    waits: bool


class Notices:
    """The notices of all ranks of a job, in the store of its default group.

    Parameters
    ----------
    store : torch.distributed.Store
    is_ours : bool
        Whether the default group is of this backend, and so keeps the store.
    """

    #: How many were of default groups of this backend, on all ranks alike.
    made = 0

    def __init__(self, store: Any, is_ours: bool):
        self.given = store if is_ours else None  # whose server may live in this process
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        # A client that somebody else waits with answers nobody meanwhile.
        self.store = store.clone() if hasattr(store, "clone") else store
        self.store.set_timeout(timedelta(seconds=_LOOK_SECONDS))
        self._lock, self._n = Lock(), 0
        Notices.made += is_ours
        self._generation = Notices.made
        self._known: list[Notice] = []

    def post(self, notice: Notice) -> None:
        """Tell all ranks."""
        with self._lock:
            number = self.store.add(f"{prefix()}/notices", 1)
            self.store.set(f"{prefix()}/notices/{number}", pickle.dumps(tuple(notice)))

    def of(self, group: str) -> dict[int, Notice]:
        """The first notice of each rank of a group."""
        with self._lock:
            for number in range(self._n + 1, self.store.add(f"{prefix()}/notices", 0) + 1):
                if not self.store.check([key := f"{prefix()}/notices/{number}"]):
                    break
                self._known.append(Notice(*pickle.loads(self.store.get(key))))
                self._n = number
            found: dict[int, Notice] = {}
            for one in self._known:
                if one.group == group:
                    found.setdefault(one.rank, one)
            return found

    def leave(self, size: int, waits: bool, seconds: float) -> None:
        """Say that this rank has ended; with ``waits`` return when all have, or after so many seconds."""
        key, until = f"{prefix()}/ended/{self._generation}", time.monotonic() + seconds
        n = self.store.add(key, 1)
        while waits and n < size and time.monotonic() < until:
            time.sleep(0.01)
            n = self.store.add(key, 0)

    def barrier(self, name: str, rank: int, size: int, seconds: float, all_ranks: bool) -> list[int]:
        """Wait for all ranks; rank 0 gets the missing ones: all, or the first. Others get a list with rank 0
        where that does not come or has found that others do not.
        """
        keys = [f"{prefix()}/barrier/{name}/{other}" for other in range(size)]
        until = time.monotonic() + seconds
        if rank:
            self.store.set(keys[rank], b"1")
            last = seconds + 1.0
            return [] if self._waits([keys[0]], last) and self.store.get(keys[0]) == b"1" else [0]
        late: list[int] = []
        for other in range(1, size):
            if self._waits([keys[other]], max(until - time.monotonic(), 1e-3)):
                continue
            late.append(other)
            if not all_ranks:
                break
        self.store.set(keys[0], b"0" if late else b"1")
        return late

    def _waits(self, keys: Sequence[str], seconds: float) -> bool:
        """Whether keys are set within so many seconds; looks, so that others may use the store meanwhile."""
        until, pause = time.monotonic() + seconds, 1e-4
        while True:
            with self._lock:
                if self.store.check(list(keys)):
                    return True
            if time.monotonic() > until:
                return False
            time.sleep(pause)
            pause = min(2 * pause, 0.01)


_notices: list[Notices] = []


def watch_store(store: Any, is_ours: bool) -> None:
    """Have notices in the store of a default group, which another one may have taken the place of."""
    if is_ours or not _notices:
        _notices[:] = [Notices(store, is_ours)]


def notices() -> Notices:
    """The notices of this job, IndexError where there is no group any more."""
    return _notices[0]


def end_notices(rank: int, size: int) -> None:
    """Say that this rank has ended its groups, and leave the store, whose server may end with rank 0's."""
    if _notices:
        with suppress(RuntimeError):
            _notices.pop().leave(size, rank == 0, _SERVER_SECONDS)


def forget_store() -> None:
    """Leave the store of a default group of another backend, which ends without a word."""
    _notices.clear()


# -- the end of processes

#: Communicators of groups that are part of no other one here, by their ranks, for `meet_at_end` alone.
_jobs: dict[frozenset[int], MPI.Intracomm] = {}


def add_job(comm: MPI.Intracomm, ranks: Sequence[int]) -> None:
    """Have a group's ranks, those of COMM_WORLD, meet before MPI ends; collective over these."""
    if not any(known.issuperset(ranks) for known in _jobs):
        _jobs[frozenset(ranks)] = comm.Dup()
        before_finalize(meet_at_end)


def meet_at_end(seconds: float = inf) -> None:
    """Return when the ranks of all groups are at the ends of their processes, or after so many seconds.

    Ranks that have destroyed their groups may still write a checkpoint.
    """
    until = time.monotonic() + seconds
    with _engine.plain_calls():
        requests = [comm.Ibarrier() for comm in _jobs.values()]
        _jobs.clear()
        while not MPI.Request.Testall(requests) and time.monotonic() < until:
            time.sleep(0.01)
