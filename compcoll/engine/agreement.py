"""Agreement between the ranks of a group on the calls that they make.

MPI matches any collectives, one rank's sum with another's broadcast. So the ranks reduce a checksum of each
call beside it, and exchange descriptions only where the checksums differ: then the same error is raised on
every rank. A rank that gives up a call, or ends, sends a notice to the others, which do not wait for it then.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from math import inf
from threading import Lock
from time import monotonic, sleep
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from mpi4py import MPI

from compcoll.core.errors import MismatchError
from compcoll.engine import _engine
from compcoll.engine.group import Group

__all__ = ["Agreement", "Check", "format_ranks"]

#: Seconds between two looks at notices during a wait, and at messages of an exchange.
SLICE, PAUSE = 0.05, 50e-6
#: Probes before a message is taken not to be there: one makes progress, and a later one finds it.
LOOKS = 3
#: Seconds for which a rank that gives up waits for the notices of others that give up at the same time.
GRACE = 1.0
#: Checks that end when the last rank comes, if it does: MPI writes to their memory.
_abandoned: list[Check] = []
#: Of the descriptions of a call, one from each rank, the reason why the call fails; None where it goes on.
Describe = Callable[[Sequence[Any]], str | None]


class Notice(NamedTuple):
    """The notice of a rank that leaves: the first call that it does not complete, and why.

    ``waits``: it has waited for others in that call; ``heard``: when this rank heard of it.
    """

    first: int
    why: str
    waits: bool
    heard: float


class Check(_engine.Request):
    """The comparison of the next call, a task beside it; `check` raises where the ranks' calls do not match.

    Parameters
    ----------
    agreement : Agreement
    text : str
        Compared by its checksum.
    call : object
        Described to the other ranks where the checksums differ.
    what : str
        The call in messages of ranks that wait for others.
    describe : callable

    Attributes
    ----------
    number : int
        The group's collectives so far, this one included.
    """

    def __new__(cls, *args: Any) -> Check:
        return super().__new__(cls)

    def __init__(
        self,
        agreement: Agreement,
        text: str,
        call: Any,
        what: str,
        describe: Describe,
    ):
        agreement.n_calls += 1
        self.number, self.call, self.what = agreement.n_calls, call, what
        self._agreement, self._describe = agreement, describe
        code = crc32(text.encode(), self.number)
        self._extremes = np.array([code, -code], np.int64)
        super().__init__(agreement.comm.Iallreduce(MPI.IN_PLACE, self._extremes, MPI.MAX))

    def check(self) -> None:
        super().check()
        if self._extremes[0] == -self._extremes[1]:
            return
        self._extremes[:] = 0  # a second look finds no difference
        problem = self._describe(self._agreement.exchange(self))
        if problem is not None:
            raise self._agreement.error(problem)


class Agreement:
    """Compares the calls of a group's ranks.

    Parameters
    ----------
    group : Group
        Its private communicator has no other collectives while a check is outstanding.
    seconds : float
        Longest wait for other ranks.
    error : type
        Of the exception for calls that do not match.

    Attributes
    ----------
    n_calls : int
        Collectives of the group that have begun.
    left : bool
        Whether this rank has sent its notice.
    """

    def __init__(self, group: Group, seconds: float, error: type[Exception] = MismatchError):
        self.comm, self.rank, self.size = group.private_comm, group.rank, group.size
        self.seconds, self.error = seconds, error
        self.n_calls, self.left = 0, False
        self._tags = group.agreement_tags
        self._lock = Lock()
        self._sent: list[tuple[MPI.Request, bytes]] = []
        self._notices: dict[int, Notice] = {}

    def wait(self, check: Check) -> None:
        """Wait until all ranks have come, and made matching calls; an error where they do not."""
        until = monotonic() + self.seconds
        try:
            while not _engine.wait(check, limit=SLICE):
                self.look(check, until)
            self.look(check, until)
        except BaseException:
            if check.end != _engine.DONE:
                _abandoned.append(check)
                self.leave(check.number, f"gave up in {check.what}", waits=True)
            raise

    def look(self, check: Check, until: float) -> None:
        """Raise the error of a check that other ranks do not come to, or not in time."""
        late = not check.done and monotonic() > until
        if late or self.notices(check.number):
            raise self.error(self.give_up(check, late))

    def exchange(self, check: Check) -> list[Any]:
        """The descriptions of one call by all ranks; None for a rank whose own has not come in time."""
        tag = self._tags[1 + check.number % (len(self._tags) - 1)]
        self._send((check.number, check.call), tag)
        found: list[Any] = [None] * self.size
        found[self.rank] = check.call
        until = monotonic() + self.seconds
        while None in found and monotonic() < until:
            if (message := self._receive(tag)) is None:
                _engine.check_signals()
                sleep(PAUSE)
            elif message[1][0] == check.number:
                found[message[0]] = message[1][1]
        return found

    # -- ranks that leave

    def leave(self, number: int, why: str, waits: bool = False) -> None:
        """Send the notice that this rank does not complete calls from this number on, once.

        ``waits``: it has waited for others in the first of them.
        """
        if not self.left:
            self.left = True
            self._send((number, why, waits), self._tags[0])

    def notices(self, number: float = inf, grace: float = 0.0) -> dict[int, Notice]:
        """The notices of ranks that do not complete a call, of that many seconds ago at least."""
        while (heard := self._receive(self._tags[0])) is not None:
            rank, (first, why, waits) = heard
            self._notices.setdefault(rank, Notice(first, why, waits, monotonic()))
        latest = monotonic() - grace
        known = sorted(self._notices.items())
        return {rank: one for rank, one in known if one.first <= number and one.heard <= latest}

    def part(self, why: str, seconds: float) -> bool:
        """Leave all later calls; whether the others do so as well, in time, and their notices have come."""
        self.leave(self.n_calls + 1, why)
        self._wait_for_notices(seconds)
        return [one.why for one in self.notices().values()] == [why] * (self.size - 1)

    def missing(self, number: int, why: str) -> list[int]:
        """Leave a call that other ranks do not come to; returns those that do not wait in it, too."""
        self.leave(number, why, waits=True)
        self._wait_for_notices(GRACE)
        there = [rank for rank, one in self.notices(number).items() if one.waits and one.first == number]
        return [rank for rank in range(self.size) if rank not in (self.rank, *there)]

    def _wait_for_notices(self, seconds: float) -> None:
        until = monotonic() + seconds
        while len(self.notices()) < self.size - 1 and monotonic() < until:
            sleep(PAUSE)

    def give_up(self, check: Check, late: bool) -> str:
        """Leave a call, where it is too late or others have left it; returns the reason, in words."""
        odd, hint = self.missing(check.number, f"gave up in {check.what}"), ""
        notices = self.notices(check.number)
        ended = [rank for rank, one in notices.items() if not one.waits]
        if odd and (late or not ended):
            why = f"has not come within {self.seconds:g} s"
            hint = ": calls of the plain communicator are not compared"
        else:
            odd = ended or list(notices)
            why = notices[odd[0]].why
        if len(odd) > 1:
            why = why.replace("has ", "have ", 1)
        there = [rank for rank in range(self.size) if rank not in odd]
        return f"{format_ranks(odd)} {why}, and {format_ranks(there)} called {check.what}{hint}"

    # -- messages

    def _send(self, message: Any, tag: int) -> None:
        data = pickle.dumps(message)
        with self._lock:
            self._sent = [pair for pair in self._sent if not pair[0].Test()]
            for peer in range(self.size):
                if peer != self.rank:
                    self._sent.append((self.comm.Isend([data, MPI.BYTE], peer, tag), data))

    def _receive(self, tag: int) -> tuple[int, Any] | None:
        """Sender and content of the next message with a tag; None where there is none yet."""
        status = MPI.Status()
        for _ in range(LOOKS):
            matched = self.comm.Improbe(MPI.ANY_SOURCE, tag, status)
            if matched is not None:
                break
        else:
            return None
        data = bytearray(status.Get_count(MPI.BYTE))
        matched.Recv([data, MPI.BYTE])
        return status.source, pickle.loads(data)


def format_ranks(ranks: Sequence[int]) -> str:
    """Ranks in words."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
