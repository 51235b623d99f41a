"""Calls, bytes and seconds of a program, added up over all its communicators."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from compcoll.operations import ALGORITHMS
from compcoll.tracing.names import leaving_nbytes

__all__ = ["Tally", "reason_of"]


@dataclass
class Sum:
    """Calls of a kind, and their seconds."""

    calls: int = 0
    seconds: float = 0.0


class Tally:
    """Sums over the calls of this rank.

    Attributes
    ----------
    calls, accelerated : int
    nbytes, wire_nbytes : float
        Bytes that would have left this rank uncompressed, and that left it; the same for calls of MPI.
    unchanged_nbytes : float
        Those of calls of MPI.
    seconds : float
        Time within calls.
    reasons : dict
        Bytes of calls of MPI by the reason.
    collectives : dict
        Accelerated blocking ones by operation, bytes of the buffer, and ranks.
    """

    def __init__(self) -> None:
        self.calls = self.accelerated = 0
        self.nbytes = self.wire_nbytes = self.unchanged_nbytes = self.seconds = 0.0
        self.reasons: defaultdict[str, float] = defaultdict(float)
        self.collectives: dict[tuple[str, int, int], Sum] = {}

    @property
    def values(self) -> list[float]:
        """All that is summed over ranks."""
        return [
            self.calls,
            self.accelerated,
            self.nbytes,
            self.wire_nbytes,
            self.unchanged_nbytes,
            self.seconds,
        ]

    def add(self, records: Iterable[Any]) -> None:
        """Count calls; see `compcoll.tracing.records.Record`."""
        for record in records:
            self.calls += record.calls
            self.seconds += record.seconds
            if record.accelerated:
                self.accelerated += 1
                if type(record.last) is tuple and len(record.last) == 3:  # else it has not ended
                    self.add_outcome(record.last[2])
                self._add_collective(record)
            elif record.sends:
                nbytes = record.calls * leaving_nbytes(record.name, record.nbytes, record.comm.size)
                self.nbytes += nbytes
                self.wire_nbytes += nbytes
                self.unchanged_nbytes += nbytes
                if nbytes:
                    self.reasons[reason_of(record)] += nbytes

    def add_outcome(self, outcome: Any) -> None:
        """Count what a call did."""
        self.nbytes += outcome.raw_nbytes
        self.wire_nbytes += outcome.wire_nbytes

    def add_objects(self, saved_nbytes: int) -> None:
        """Count a call of objects: its bytes on the wire are those of mpi4py's calls of MPI."""
        self.accelerated += 1
        self.nbytes += saved_nbytes

    def _add_collective(self, record: Any) -> None:
        if record.name in ALGORITHMS and record.problem is None:
            key = record.name, record.nbytes, record.comm.size
            known = self.collectives.setdefault(key, Sum())
            known.calls += 1
            known.seconds += record.seconds


def reason_of(record: Any) -> str:
    """Why MPI served a call."""
    last = record.last
    if last is None:
        return "not a call that is accelerated"
    return str(last[1] if type(last) is tuple else record.comm.why_small)
