"""Nonblocking collectives under ``COMPCOLL_CHECK=1``: a thread for each compares what ranks have called."""

from __future__ import annotations

import atexit
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any

from mpi4py import MPI

from compcoll.core.errors import MismatchError
from compcoll.mpi.requests import Request
from compcoll.mpi.statements import Statement, difference

__all__ = ["Watched"]

#: Seconds between two looks.
PAUSE = 200e-6
_stop = Event()
_threads: list[Thread] = []
#: Requests that will never complete, with what belongs to them.
_abandoned: list[Any] = []


class Watched:
    """A nonblocking collective under way, whose request completes with it, or as soon as the ranks differ.

    Attributes
    ----------
    request : MPI.Request
    """

    def __init__(self, comm: Any, exchange: Any, mine: Statement, inner: MPI.Request):
        self.comm, self.exchange, self.mine, self.inner = comm, exchange, mine, inner
        self.error: Exception | None = None
        self.request = Request(self._query)
        _threads[:] = [thread for thread in _threads if thread.is_alive()]
        thread = Thread(target=self._watch, name="compcoll-check", daemon=True)
        _threads.append(thread)
        thread.start()

    def _watch(self) -> None:
        try:
            self._compare()
            while not _stop.is_set() and not self.inner.Test():
                sleep(PAUSE)
        except Exception as error:
            self.error = error
            _abandoned.append(self)
        if not _stop.is_set():
            self.request.complete()

    def _compare(self) -> None:
        checker, until = self.exchange.checker, monotonic() + self.exchange.checker.seconds
        while not self.exchange.look():
            if _stop.is_set():
                return
            if monotonic() > until:
                checker.give_up(str(self.mine))
                raise MismatchError(self.exchange.overdue())
            sleep(PAUSE)
        found = difference([self.exchange.said[rank] for rank in range(checker.size)])
        if found is not None:
            raise MismatchError(found)

    def _query(self, status: MPI.Status) -> None:
        """The request was waited for, or found to be complete."""
        status.Set_elements(MPI.BYTE, 0)
        status.Set_cancelled(False)
        if self.error is not None:
            self.comm._break(str(self.error))
            raise self.error


@atexit.register
def _end() -> None:
    """No thread may call MPI after MPI_Finalize."""
    _stop.set()
    for thread in _threads:
        thread.join()
