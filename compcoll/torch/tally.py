"""What the calls of a group did, added up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Line", "Tally"]


@dataclass
class Line:
    """Calls of one operation that went one way.

    Attributes
    ----------
    op, codec, algorithm : str
        MPI's name of the operation; ``"-"`` and ``"mpi"`` where it was not compressed.
    reason : str
        Why it went that way, the last time.
    calls : int
    nbytes, largest : int
        Of the tensors that are reduced, and of the messages of other operations: all together, and the
        largest one.
    raw_nbytes, wire_nbytes : int
        What this rank would have sent uncompressed, and what it sent; of compressed calls alone.
    seconds : float
        From the beginning of each call to its end.
    fallbacks : int
        Chunks that went lossless because their codec could not carry them.
    codecs : dict of str to int
        Chunks by the codec that was really used.
    bound : float or None
        The largest error of any result; None where it is not known.
    """

    op: str
    codec: str = "-"
    algorithm: str = "mpi"
    reason: str = ""
    calls: int = 0
    nbytes: int = 0
    largest: int = 0
    raw_nbytes: int = 0
    wire_nbytes: int = 0
    seconds: float = 0.0
    fallbacks: int = 0
    codecs: dict[str, int] = field(default_factory=dict)
    bound: float | None = 0.0


class Tally:
    """Lines by operation, codec and algorithm."""

    def __init__(self) -> None:
        self.lines: dict[tuple[str, str, str], Line] = {}

    def plain(self, op: str, nbytes: int, reason: str) -> None:
        """Note a call that MPI carried out."""
        self._line(op, "-", "mpi", nbytes).reason = reason

    def compressed(self, op: str, nbytes: int, decision: Any, outcome: Any) -> None:
        """Note a call that the engine carried out."""
        line = self._line(op, decision.codec.spec, decision.algorithm, nbytes)
        line.reason = decision.reason
        line.raw_nbytes += outcome.raw_nbytes
        line.wire_nbytes += outcome.wire_nbytes
        line.fallbacks += outcome.fallbacks
        line.seconds += outcome.stages["total"]
        for name, chunks in outcome.codecs.items():
            line.codecs[name] = line.codecs.get(name, 0) + chunks
        known = line.bound is not None and outcome.bound is not None
        line.bound = max(line.bound, outcome.bound) if known else None

    def _line(self, op: str, codec: str, algorithm: str, nbytes: int) -> Line:
        key = op, codec, algorithm
        line = self.lines.get(key)
        if line is None:
            line = self.lines[key] = Line(op, codec, algorithm)
        line.calls += 1
        line.nbytes += nbytes
        line.largest = max(line.largest, nbytes)
        return line

    def keep(self, core: Any) -> None:
        """The group ends; its lines stay for the report."""
        if self.lines:
            KEPT.append((core.label, core.rank, core.size, list(self.lines.values())))


#: What groups did that there are no more: label, rank, size and lines.
KEPT: list[tuple[str, int, int, list[Line]]] = []
