"""Calls, bytes and seconds of a program, added up over all its communicators."""

from __future__ import annotations

from threading import Lock
from typing import Any

from compcoll.tracing.names import buffer_nbytes, sent_nbytes
from compcoll.tracing.watch import Ended

__all__ = ["Tally"]


class Tally:
    """What this rank did.

    Attributes
    ----------
    calls, accelerated : int
    nbytes, wire_nbytes : int
        What this rank would have sent uncompressed, and what it sent; of calls that MPI served, both are
        what it was handed to send.
    seconds : float
        Time within calls.
    """

    def __init__(self) -> None:
        self.calls = self.accelerated = self.nbytes = self.wire_nbytes = 0
        self.seconds = 0.0
        self._lock = Lock()

    @property
    def values(self) -> list[float]:
        """All of them."""
        return [self.calls, self.accelerated, self.nbytes, self.wire_nbytes, self.seconds]

    def ended(self, call: Ended) -> None:
        """A method has returned or raised."""
        outcomes = call.outcomes
        raw = wire = 0
        if outcomes:
            for outcome in outcomes:
                raw += outcome.raw_nbytes
                wire += outcome.wire_nbytes
        elif not call.accelerated:
            nbytes = buffer_nbytes(call.name, call.args, call.kwargs)
            raw = wire = sent_nbytes(call.name, nbytes, call.comm._rank, call.args, call.kwargs)
        with self._lock:
            self.calls += 1
            self.accelerated += call.accelerated
            self.nbytes += raw
            self.wire_nbytes += wire
            self.seconds += call.end - call.start

    def completed(self, request: Any, last: tuple) -> None:
        """A nonblocking call that was counted when it began has ended."""
        with self._lock:
            self.nbytes += last[2].raw_nbytes
            self.wire_nbytes += last[2].wire_nbytes
