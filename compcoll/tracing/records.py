"""Records of calls from the layer, their sums, and the places in the program that made the calls.

`compcoll.tracing.recording` takes records from the layer; `compcoll.tracing.writer` writes them.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from threading import Lock
from types import FrameType
from typing import Any, NamedTuple

import mpi4py

from compcoll.operations import OPERATIONS, blocking_name

__all__ = ["CommFacts", "Record", "Site", "Sites", "Tally"]

_PACKAGES = tuple(f"{folder}{os.sep}" for folder in (Path(__file__).parents[1], Path(mpi4py.__file__).parent))


class Record(NamedTuple):
    """A call, with the fields of `compcoll.engine._engine.take_records`; times are `time.perf_counter`'s."""

    method: str
    comm: int  # the number of the communicator
    size: int  # its ranks
    nbytes: int  # of a sending rank's buffer; 0 if it is unknown
    sends: bool  # true if this rank sends from that buffer
    start: float
    returned: float  # when the method had returned
    end: float  # when the request was found complete
    last: Any  # as of `compcoll.engine._engine.last_of`; None of what is never accelerated
    accelerated: bool
    failed: bool
    site: int  # the number of a `Site`; 0 if none was requested
    is_open: bool  # whether the request is not complete
    calls: int  # equal small calls share a record with the sums of their times, without sites
    element: int = 0  # code of its elements (`compcoll.core.dtypes`); 0 without one, or without sites

    @property
    def unchanged_nbytes(self) -> int:
        """Bytes that this rank sends in each of these calls, which MPI serves."""
        if self.is_open or not self.sends:
            return 0
        return _leaving_nbytes(self.method, self.nbytes, self.size)


class CommFacts(NamedTuple):
    """Facts of a communicator."""

    name: str  # its own, else that of its class
    size: int
    why_small: str  # why MPI serves small calls


class Site(NamedTuple):
    """A place in the program that calls, and the communicator of the call."""

    file: str | None
    line: int | str | None  # for a program in C, the name of the function
    comm: CommFacts

    def reason_of(self, record: Record) -> str:
        """Why MPI served a call."""
        if record.is_open:
            return "it has not ended"
        if record.last is None:
            return "not a call that is accelerated"
        return str(record.last[1]) if isinstance(record.last, tuple) else self.comm.why_small


class Sites:
    """The sites of this process, by number.

    Parameters
    ----------
    facts_of : callable
        ``facts_of(number, name, size)`` gives the `CommFacts` of a communicator.
    """

    def __init__(self, facts_of: Callable[[int, str, int], CommFacts]) -> None:
        self._facts_of = facts_of
        self._numbers: dict[tuple, int] = {}
        self._sites: list[Site] = []
        self._lock = Lock()

    def number(self, path: str | None, symbol: str | None, comm: int, name: str) -> int:
        """The number of a site: see `compcoll.engine._engine.record_calls`."""
        frame = _innermost() if path is None else None
        if frame is None:
            key: tuple = path, symbol, comm, name
        else:
            code = frame.f_code
            key = code.co_filename, code.co_firstlineno, frame.f_lasti, comm, name
        number = self._numbers.get(key)
        if number is None:
            file, line = (path, symbol) if frame is None else (key[0], frame.f_lineno)
            with self._lock:
                self._sites.append(Site(file, line, self._facts_of(comm, name, 1)))
                number = self._numbers[key] = len(self._sites)
        return number

    def of(self, record: Record) -> Site:
        """The site of a record."""
        if record.site:
            return self._sites[record.site - 1]
        return Site(None, None, self._facts_of(record.comm, "", record.size))


@dataclass
class Tally:
    """Sums over the calls of this rank."""

    calls: int = 0
    accelerated: int = 0
    nbytes: int = 0  # bytes of all calls that this rank would have sent uncompressed
    wire_nbytes: int = 0  # bytes sent
    seconds: float = 0.0  # within calls
    reasons: Counter[str] = field(default_factory=Counter)  # bytes of calls of MPI by the reason

    @property
    def values(self) -> list[float]:
        """Numbers to sum over ranks; the last one is the bytes of plain MPI's calls."""
        unchanged = self.reasons.total()
        return [self.calls, self.accelerated, self.nbytes, self.wire_nbytes, self.seconds, unchanged]

    def add(self, record: Record, site: Site) -> None:
        """Count calls."""
        self.calls += record.calls
        self.seconds += record.returned - record.start
        if record.accelerated:
            self.accelerated += 1
            self.nbytes += record.last[2].raw_nbytes
            self.wire_nbytes += record.last[2].wire_nbytes
            return
        nbytes = record.calls * record.unchanged_nbytes
        self.nbytes += nbytes
        self.wire_nbytes += nbytes
        if nbytes:
            self.reasons[site.reason_of(record)] += nbytes

    def add_objects(self, saved_nbytes: int) -> None:
        """Count a call of objects; its bytes on the wire are counted in mpi4py's MPI calls."""
        self.accelerated += 1
        self.nbytes += saved_nbytes


@lru_cache(4096)
def _leaving_nbytes(method: str, nbytes: int, size: int) -> int:
    """Bytes of a rank's buffer that it has to send, on average over all sending ranks.

    No algorithm sends less in all: ``P - 1`` ranks need the whole buffer of a Bcast, and all but one part of
    a sum has to be sent and, in Allreduce, sent back.
    """
    operation = OPERATIONS.get(blocking_name(method)) or OPERATIONS.get(method.capitalize())
    if size == 1:
        return 0
    if operation is None or operation.name.startswith("Neighbor_"):
        return nbytes
    if operation.replicates and not operation.reduces:
        return nbytes * (size - 1)
    return round(nbytes * (size - 1) / size * (1 + operation.replicates))


def _innermost() -> FrameType | None:
    """The innermost frame whose code is neither compcoll's nor mpi4py's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGES):
        frame = frame.f_back
    return frame
