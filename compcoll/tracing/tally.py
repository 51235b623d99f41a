"""Calls, bytes and seconds of a program, added up over all its communicators."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["Tally", "outcomes"]


class Tally:
    """What this rank did.

    Attributes
    ----------
    calls, accelerated : int
    nbytes, wire_nbytes : int
        What this rank would have sent uncompressed, and what it sent; of calls that MPI served, both are
        the bytes of the buffer that this rank gave it to send.
    seconds : float
        Time within calls.
    """

    def __init__(self) -> None:
        self.calls = self.accelerated = self.nbytes = self.wire_nbytes = 0
        self.seconds = 0.0

    @property
    def values(self) -> list[float]:
        """All of them."""
        return [self.calls, self.accelerated, self.nbytes, self.wire_nbytes, self.seconds]

    def add(self, records: Iterable[Any]) -> None:
        """Count calls; see `compcoll.tracing._watch.Record`."""
        for record in records:
            self.calls += 1
            self.seconds += record.seconds
            if record.accelerated:
                self.accelerated += 1
                for outcome in outcomes(record):
                    self.add_outcome(outcome)
            elif record.sends:
                self.nbytes += record.nbytes
                self.wire_nbytes += record.nbytes

    def add_outcome(self, outcome: Any) -> None:
        """Count what a call did whose record did not tell."""
        self.nbytes += outcome.raw_nbytes
        self.wire_nbytes += outcome.wire_nbytes


def outcomes(record: Any) -> list:
    """What the accelerated parts of a call did; none of a nonblocking one that has not ended."""
    parts = (record.last,) if record.parts is None else record.parts
    return [part[2] for part in parts if type(part) is tuple and len(part) == 3]
