"""Agreement between the ranks of a group on the calls that they make.

MPI matches any collectives, one rank's sum with another's broadcast. So the ranks reduce a checksum of each
call beside it, and exchange descriptions only where the checksums differ: then the same error is raised on
every rank. A rank that gives up a call, or ends, sends a notice to the others, which do not wait for it then.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from threading import Lock
from time import monotonic, sleep
from typing import Any
from zlib import crc32

import numpy as np
from mpi4py import MPI

from compcoll.core.errors import MismatchError
from compcoll.engine import _engine, interrupts
from compcoll.engine.group import Group

__all__ = ["ENDED", "Agreement", "Check", "format_ranks"]

#: Seconds between two looks at notices during a wait, and at messages of an exchange.
SLICE, PAUSE = 0.05, 50e-6
#: Seconds for which a rank that gives up waits for the notices of others that give up at the same time.
GRACE = 1.0
#: The notice of a rank that calls nothing any more.
ENDED = "has ended"
#: Of the descriptions of a call, one from each rank, the reason why the call fails; None where it goes on.
Describe = Callable[[Sequence[Any]], str | None]


class Check(_engine.Request):
    """The comparison of one call, a task beside it; `check` raises where the ranks' calls do not match.

    Attributes
    ----------
    number : int
        The group's collectives so far, this one included.
    call : object
        This rank's description.
    what : str
        The call in messages of ranks that wait for others.
    """

    def __new__(cls, *args: Any) -> Check:
        return super().__new__(cls)

    def __init__(
        self, agreement: Agreement, text: bytes, call: Any, what: str, describe: Describe, exchanges: bool
    ):
        self.number, self.call, self.what = agreement.n_calls, call, what
        self._agreement, self._describe = agreement, describe
        code = crc32(text, self.number)
        self._extremes = np.array([code, -code, exchanges], np.int64)
        super().__init__(agreement.comm.Iallreduce(MPI.IN_PLACE, self._extremes, MPI.MAX))

    def check(self) -> None:
        super().check()
        if self._extremes[0] == -self._extremes[1] and not self._extremes[2]:
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
        #: By rank: the first call that it does not complete any more, and why.
        self.notices: dict[int, tuple[int, str]] = {}

    def begin(self, text: bytes, call: Any, what: str, describe: Describe, exchanges: bool = False) -> Check:
        """Begin the comparison of the next call.

        Parameters
        ----------
        text : bytes
            Compared by its checksum.
        call : object
            Described to the other ranks where the checksums differ.
        what : str
        describe : callable
        exchanges : bool
            Whether the descriptions are needed in any case.
        """
        self.n_calls += 1
        return Check(self, text, call, what, describe, exchanges)

    def wait(self, check: Check) -> None:
        """Wait until all ranks have come, and made matching calls; an error where they do not."""
        until = monotonic() + self.seconds
        try:
            while not _engine.wait(check, limit=SLICE):
                self.look(check, until)
            self.look(check, until)
        except BaseException:
            if not check.done:
                self.leave(check.number, f"gave up in {check.what}")
            raise

    def look(self, check: Check, until: float) -> None:
        """Raise the error of a check that other ranks do not come to, or not in time."""
        late = not check.done and monotonic() > until
        if late or self.absent(check.number):
            raise self.error(self.give_up(check, late))

    def exchange(self, check: Check) -> list[Any]:
        """The descriptions of one call by all ranks; None for a rank whose own has not come in time."""
        tag = self._tags[1 + check.number % (len(self._tags) - 1)]
        self._send((check.number, check.call), tag)
        found: list[Any] = [None] * self.size
        found[self.rank] = check.call
        until = monotonic() + self.seconds
        while None in found and monotonic() < until:
            source, message = self._receive(tag)
            if message is not None and message[0] == check.number:
                found[source] = message[1]
            else:
                interrupts.check()
                sleep(PAUSE)
        return found

    # -- ranks that leave

    def leave(self, number: int, why: str) -> None:
        """Send the notice that this rank does not complete calls from this number on, once."""
        if not self.left:
            self.left = True
            self._send((number, why), self._tags[0])

    def absent(self, number: int) -> dict[int, str]:
        """The ranks that do not complete a call any more, by their notices."""
        while (notice := self._receive(self._tags[0]))[1] is not None:
            self.notices.setdefault(*notice)
        return {rank: why for rank, (first, why) in self.notices.items() if first <= number}

    def missing(self, number: int, why: str) -> list[int]:
        """Leave a call, and find the ranks that have not left it as well: those that never came."""
        self.leave(number, why)
        until = monotonic() + GRACE
        while len(self.absent(number)) < self.size - 1 and monotonic() < until:
            sleep(PAUSE)
        there = {self.rank, *(rank for rank, why in self.absent(number).items() if why != ENDED)}
        return [rank for rank in range(self.size) if rank not in there]

    def give_up(self, check: Check, late: bool) -> str:
        """Leave a call, where it is too late or others have left it; returns the reason, in words."""
        odd, hint = self.missing(check.number, f"gave up in {check.what}"), ""
        notices = self.absent(check.number)
        ended = [rank for rank in sorted(notices) if notices[rank] == ENDED]
        if odd and (late or not ended):
            why = f"has not come within {self.seconds:g} s"
            hint = ": calls of the plain communicator are not compared"
        else:
            odd = ended or sorted(notices)
            why = notices[odd[0]]
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

    def _receive(self, tag: int) -> tuple[int, Any]:
        """Sender and message of the next message with a tag; None where there is none yet."""
        status = MPI.Status()
        matched = self.comm.Improbe(MPI.ANY_SOURCE, tag, status)
        if matched is None:
            return -1, None
        data = bytearray(status.Get_count(MPI.BYTE))
        matched.Recv([data, MPI.BYTE])
        return status.source, pickle.loads(data)


def format_ranks(ranks: Sequence[int]) -> str:
    """Ranks in words."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
