"""What the ranks of a communicator say to each other before a call, over a private communicator."""

from __future__ import annotations

import atexit
import pickle
from collections.abc import Callable
from math import isinf
from time import monotonic, sleep
from typing import Any
from weakref import WeakSet

import numpy as np
from mpi4py import MPI

from compcoll.core import environment
from compcoll.core.errors import MismatchError
from compcoll.engine import interrupts
from compcoll.engine.group import Group
from compcoll.mpi.statements import listed

__all__ = ["Checker", "Exchange"]

#: Seconds to wait for other ranks where ``COMPCOLL_TIMEOUT`` says nothing.
PATIENCE = 300.0
#: Seconds between two looks.
PAUSE = 50e-6
#: Tags of statements, one after another; that of notes.
_TAGS, _NOTE = 30000, 0
#: How the note of a rank begins that does not take part in a call of which it has spoken.
GAVE_UP = "gave up"


class Checker:
    """Compares the calls of one communicator.

    Parameters
    ----------
    group : Group
    """

    def __init__(self, group: Group):
        self._group, self._comm = group, MPI.COMM_NULL
        self.rank, self.size = group.rank, group.size
        self.seconds = environment.timeout()
        if isinf(self.seconds):
            self.seconds = PATIENCE
        self._number, self._left = 0, False
        self._open: set[Exchange] = set()
        self._sent: list[tuple[MPI.Request, bytes]] = []
        self._notes: dict[int, str] = {}
        _living.add(self)

    def begin(self, said: Any, what: str) -> Exchange:
        """Tell the other ranks something, and begin to hear what they say."""
        self.make(what)
        self._number += 1
        exchange = Exchange(self, 1 + self._number % _TAGS, said, what)
        self._open.add(exchange)
        self.tell(said, 1 + self._number % _TAGS)
        return exchange

    def make(self, what: str) -> None:
        """Have the private communicator; the first time collective."""
        if self._comm != MPI.COMM_NULL:
            return
        comm, request = self._group.comm.Idup()
        until = monotonic() + self.seconds
        while not request.Test():
            _rest(until, lambda: f"{what}: not all ranks have come within {self.seconds:g} s")
        self._comm = comm
        self._group.make_shadow()  # for which a nonblocking call would wait

    def tell(self, said: Any, tag: int) -> None:
        """Send something to all other ranks."""
        self._sent = [pair for pair in self._sent if not pair[0].Test()]
        data = pickle.dumps(said)
        for peer in range(self.size):
            if peer != self.rank:
                self._sent.append((self._comm.Isend([data, MPI.BYTE], peer, tag), data))

    def hear(self, peer: int, tag: int) -> Any:
        """What a rank has said under a tag; None where it has not yet."""
        matched = self._comm.Improbe(peer, tag, status := MPI.Status())
        if matched is None:
            return None
        data = np.empty(status.Get_count(MPI.BYTE), np.uint8)
        matched.Recv([data, MPI.BYTE])
        return pickle.loads(data.data)

    def noted(self, peer: int) -> str:
        """Why a rank does not come any more; empty where it may."""
        note = self.hear(peer, _NOTE)
        if note is not None:
            self._notes[peer] = note
            self._left = True
        return self._notes.get(peer, "")

    def give_up(self, what: str) -> None:
        """Tell the others that this rank has waited for them in vain."""
        self._leave(f"{GAVE_UP} in {what}")

    def end(self) -> None:
        """Tell the others that this rank calls nothing any more."""
        self._leave("has ended")

    def _leave(self, why: str) -> None:
        self._left = True
        if self._comm != MPI.COMM_NULL:
            self.tell(why, _NOTE)

    def over(self, exchange: Exchange) -> None:
        """All has been heard."""
        self._open.discard(exchange)

    def free(self) -> None:
        """Free the private communicator; collective. One is kept where messages may still be on their way."""
        _living.discard(self)
        if self._comm != MPI.COMM_NULL and not self._left and not self._open:
            self._comm.Free()


_living: WeakSet[Checker] = WeakSet()


@atexit.register
def _end() -> None:
    for checker in list(_living):
        if not MPI.Is_finalized():
            checker.end()


def _rest(until: float, problem: Callable[[], str]) -> None:
    """Wait a moment; MismatchError where it is too late."""
    interrupts.check()
    if monotonic() > until:
        raise MismatchError(problem())
    sleep(PAUSE)


class Exchange:
    """What all ranks say of one call, as it arrives."""

    def __init__(self, checker: Checker, tag: int, mine: Any, what: str):
        self.checker, self.what, self._tag = checker, what, tag
        self.said: dict[int, Any] = {checker.rank: mine}

    def look(self) -> bool:
        """Whether all have spoken; MismatchError where one no longer can."""
        for peer in range(self.checker.size):
            if peer in self.said:
                continue
            said, note = self.checker.hear(peer, self._tag), self.checker.noted(peer)
            if note and said is None:  # what it has said before that has come by now
                said = self.checker.hear(peer, self._tag)
            if note and (said is None or note.startswith(GAVE_UP)):
                raise MismatchError(f"rank {peer} {note}, {self._here()}")
            if said is not None:
                self.said[peer] = said
        if len(self.said) < self.checker.size:
            return False
        self.checker.over(self)
        return True

    def wait(self) -> list[Any]:
        """What all ranks have said, in their order."""
        until = monotonic() + self.checker.seconds
        while not self.look():
            _rest(until, self.overdue)
        return [self.said[rank] for rank in range(self.checker.size)]

    def overdue(self) -> str:
        """Who has not come."""
        missing = [rank for rank in range(self.checker.size) if rank not in self.said]
        have = "has" if len(missing) == 1 else "have"
        return f"{listed(missing)} {have} not come within {self.checker.seconds:g} s, {self._here()}"

    def _here(self) -> str:
        return f"and {listed(sorted(self.said))} called {self.what}"
