"""Messages of the ranks in torch's store: who is in a group, and who leaves it.

MPI cannot report a rank that never arrives. A rank that leaves a group therefore posts the reason in torch's
store, and the others read it once they have waited for a while.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from threading import Lock
from typing import Any, NamedTuple

from compcoll.launch.pmi import ranks_of
from compcoll.launch.torchrun import missing, prefix

__all__ = [
    "STORE_ERRORS",
    "Departure",
    "Departures",
    "departures",
    "end_departures",
    "exchange",
    "forget_store",
    "watch_store",
]

#: Errors of a store whose process has ended, or which this process has left.
STORE_ERRORS = RuntimeError, IndexError
#: Seconds for which the store stays for ranks that end a little later.
_SERVER_SECONDS = 1.0
#: Seconds that a look into the store may take.
_LOOK_SECONDS = 10.0


def exchange(store: Any, rank: int, size: int, mine: Any, seconds: float, what: str) -> list[Any]:
    """Exchange objects of all ranks, or raise RuntimeError with the names of missing ranks."""
    # The store may have the keys of an earlier group with the same name.
    n = store.add(f"{prefix()}/rounds/{rank}", 1)
    keys = [f"{prefix()}/{n}/{other}" for other in range(size)]
    store.set(keys[rank], pickle.dumps(mine))
    if late := missing(store, keys, seconds):
        raise RuntimeError(f"{what}: {ranks_of(late)} of {size} did not come within {seconds:g} s")
    return [pickle.loads(store.get(key)) for key in keys]


class Departure(NamedTuple):
    """Message of a rank that leaves a group: the first call that it does not complete, and the reason.

    ``waits``: the rank has waited for others in that call.
    """

    group: str
    rank: int
    first: int
    why: str
    waits: bool


class Departures:
    """Departures of all ranks of a job, in the store of its default group.

    Parameters
    ----------
    store : torch.distributed.Store
    is_ours : bool
        True if the default group is of this backend, and so keeps the store.
    """

    #: Number of default groups of this backend so far, equal on all ranks.
    made = 0

    def __init__(self, store: Any, is_ours: bool):
        self.given = store if is_ours else None  # kept, as its server may be in this process
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        # A client serves one thread at a time: another thread's wait would block this one.
        self.store = store.clone() if hasattr(store, "clone") else store
        self.store.set_timeout(timedelta(seconds=_LOOK_SECONDS))
        self._lock, self._n = Lock(), 0
        Departures.made += is_ours
        self._generation = Departures.made
        self._known: list[Departure] = []

    def post(self, departure: Departure) -> None:
        """Post a departure for all ranks."""
        with self._lock:
            number = self.store.add(f"{prefix()}/departures", 1)
            self.store.set(f"{prefix()}/departures/{number}", pickle.dumps(tuple(departure)))

    def of(self, group: str) -> dict[int, Departure]:
        """The first departure of each rank of a group."""
        with self._lock:
            for number in range(self._n + 1, self.store.add(f"{prefix()}/departures", 0) + 1):
                if not self.store.check([key := f"{prefix()}/departures/{number}"]):
                    break
                self._known.append(Departure(*pickle.loads(self.store.get(key))))
                self._n = number
            found: dict[int, Departure] = {}
            for one in self._known:
                if one.group == group:
                    found.setdefault(one.rank, one)
            return found

    def leave(self, size: int, waits: bool, seconds: float) -> None:
        """Report that this rank has ended; with ``waits`` wait at most ``seconds`` for all ranks to end."""
        key, until = f"{prefix()}/ended/{self._generation}", time.monotonic() + seconds
        n = self.store.add(key, 1)
        while waits and n < size and time.monotonic() < until:
            time.sleep(0.01)
            n = self.store.add(key, 0)

    def barrier(self, name: str, rank: int, size: int, seconds: float, all_ranks: bool) -> list[int]:
        """Wait for all ranks; rank 0 gets the missing ones, all or the first.

        Other ranks get a list with rank 0 if it does not call, or has missed others.
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
        """Poll for keys at most ``seconds``, and leave the store to others meanwhile; True if all are set."""
        until, pause = time.monotonic() + seconds, 1e-4
        while True:
            with self._lock:
                if self.store.check(list(keys)):
                    return True
            if time.monotonic() > until:
                return False
            time.sleep(pause)
            pause = min(2 * pause, 0.01)


_departures: list[Departures] = []


def watch_store(store: Any, is_ours: bool) -> None:
    """Keep departures in the store of a default group, which may replace an earlier one."""
    if is_ours or not _departures:
        _departures[:] = [Departures(store, is_ours)]


def departures() -> Departures:
    """Departures of this job; raises IndexError if no group is left."""
    return _departures[0]


def end_departures(rank: int, size: int) -> None:
    """Report that this rank has ended its groups, and leave the store, whose server may end with rank 0."""
    if _departures:
        with suppress(RuntimeError):
            _departures.pop().leave(size, rank == 0, _SERVER_SECONDS)


def forget_store() -> None:
    """Leave the store of another backend's default group, which may end at any time."""
    _departures.clear()
