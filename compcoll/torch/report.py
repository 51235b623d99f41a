"""Statistics of the calls of all process groups, as a table."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from compcoll.codecs import codec
from compcoll.engine.report import Stats
from compcoll.policy.policy import below_min_nbytes
from compcoll.torch.groups import all_groups

__all__ = ["CallStats", "GroupStats", "TrainingReport", "report"]

#: Calls whose statistics are not added up yet.
_MOST_UNCOUNTED = 1000


@dataclass(eq=False)
class CallStats(Stats):
    """Sums over calls of one operation by one codec and algorithm; sent bytes are those of compressed calls.

    Attributes
    ----------
    op, codec, algorithm : str
        MPI's name of the operation; ``"-"`` and ``"mpi"`` for uncompressed calls.
    reason : str
        The reason for codec and algorithm, of the last call.
    calls : int
    nbytes, largest : int
        Bytes of tensors that are reduced, and of other operations' messages: their sum, and the largest.
    """

    op: str = ""
    codec: str = "-"
    algorithm: str = "mpi"
    reason: str = ""
    calls: int = 0
    nbytes: int = 0
    largest: int = 0

    def count(self, calls: int, nbytes: int, largest: int, reason: str) -> None:
        """Count calls."""
        self.calls += calls
        self.nbytes += nbytes
        self.largest = max(self.largest, largest)
        self.reason = reason

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of a table."""
        sent: tuple[str, ...] = ("-",) * 4
        if self.codec != "-":
            bound = "unknown" if self.bound is None else f"{self.bound:.3g}"
            if self.bound and codec(self.codec).lossless:
                bound += " (rounding of the sum)"
            ratio = f"{self.raw_nbytes / self.wire_nbytes:.2f}" if self.wire_nbytes else "-"
            sent = (str(self.wire_nbytes), ratio, f"{1e3 * self.stages['total']:.1f}", bound)
        used = "".join(f", {n} x {name}" for name, n in self.codecs.items())
        back = f", {self.fallbacks} fallbacks" if self.fallbacks else ""
        numbers = str(self.calls), str(self.nbytes), str(self.largest)
        return self.op, self.codec, *numbers, *sent, self.reason + used + back


class GroupStats:
    """The calls of a group, by operation, codec and algorithm.

    Parameters
    ----------
    group : GroupState
    """

    def __init__(self, group: Any):
        self._group, self._lock = group, Lock()
        self._ended: deque[tuple[list[tuple[str, int]], Any]] = deque()
        self._small: dict[int, str] = {}
        self._lines: dict[tuple[str, str, str], CallStats] = {}

    @property
    def lines(self) -> dict[tuple[str, str, str], CallStats]:
        """The calls so far."""
        with self._lock:
            while self._ended:
                self._add(*self._ended.popleft())
            return dict(self._lines)

    def line(self, op: str, codec: str, algorithm: str) -> CallStats:
        """The calls of an operation by a codec and an algorithm."""
        key = op, codec, algorithm
        if key not in self._lines:
            self._lines[key] = CallStats(op=op, codec=codec, algorithm=algorithm)
        return self._lines[key]

    def count(self, calls: list[tuple[str, int]], notes: Any) -> None:
        """Count calls that have ended, by MPI's names and bytes, with their outcomes in the layer."""
        self._ended.append((calls, notes))
        if len(self._ended) > _MOST_UNCOUNTED:
            _ = self.lines

    def _add(self, calls: list[tuple[str, int]], notes: Any) -> None:
        for (op, nbytes), note in zip(calls, notes.read(), strict=True):
            if op != "Recv":  # the sender has counted it
                self._add_one(op, nbytes, note)

    def _add_one(self, op: str, nbytes: int, note: Any) -> None:
        if isinstance(note, tuple) and len(note) == 3:
            _, way, outcome = note
            line, reason = self.line(op, way.codec, way.algorithm), way.reason
            line.add(outcome, outcome.bound)
        else:
            line = self.line(op, "-", "mpi")
            reason = note[1] if isinstance(note, tuple) else self._why_small()
        line.count(1, nbytes, nbytes, reason)

    def _why_small(self) -> str:
        marked = self._group.marked
        policies = marked.policies
        if id(policies) not in self._small:
            reason = marked.idle or below_min_nbytes(marked.policy.min_nbytes)
            self._small = {id(policies): reason}
        return self._small[id(policies)]

    def keep(self, label: str) -> None:
        """Keep the lines for the report, as the group ends."""
        if self.lines:
            _ended.append((label, list(self.lines.values())))


#: Label and lines of groups that were destroyed.
_ended: list[tuple[str, list[CallStats]]] = []


@dataclass(frozen=True)
class TrainingReport:
    """Sums over the calls of all process groups, on this rank or on all.

    Attributes
    ----------
    lines : dict of str to list of CallStats
        By the name of the group, in the order in which they were made.
    ranks : int
        How many ranks' calls these are.
    """

    lines: dict[str, list[CallStats]] = field(default_factory=dict)
    ranks: int = 1

    @property
    def raw_nbytes(self) -> int:
        """Bytes of compressed calls before compression."""
        return sum(line.raw_nbytes for lines in self.lines.values() for line in lines)

    @property
    def wire_nbytes(self) -> int:
        """Bytes that compressed calls sent."""
        return sum(line.wire_nbytes for lines in self.lines.values() for line in lines)

    def __str__(self) -> str:
        columns = "group operation codec calls bytes largest sent ratio ms error reason"
        rows = [tuple(columns.split())]
        rows += [(group, *line.cells) for group, lines in self.lines.items() for line in lines]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
        table = [
            " ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[-1]])
            for row in rows
        ]
        ranks = f"{self.ranks} ranks together" if self.ranks > 1 else "this rank"
        return "\n".join([f"compcoll.torch: {ranks}", *table])


def report(together: bool = False) -> TrainingReport:
    """Sum up the calls of all process groups so far.

    Parameters
    ----------
    together : bool
        True to add up all ranks' calls, which is collective over the largest group. Without any group the
        report has this rank's calls alone.

    Returns
    -------
    TrainingReport

    Raises
    ------
    torch.distributed.DistBackendError
        With ``together``, if a rank does not call it within the group's time-out, or calls something else.
    """
    groups = all_groups()
    mine = _ended + [(group.label, list(group.stats.lines.values())) for group in groups]
    world = max(groups, key=lambda group: group.size, default=None)
    if not together or world is None:
        return TrainingReport(_summed(mine))
    world.flush()
    everyone = world.gather_objects("report", mine)
    return TrainingReport(_summed(pair for pairs in everyone for pair in pairs), world.size)


def _summed(groups: Iterable[tuple[str, list[CallStats]]]) -> dict[str, list[CallStats]]:
    """One line for each operation, codec and algorithm of groups with the same label."""
    made: dict[str, GroupStats] = {}
    for label, lines in groups:
        stats = made.setdefault(label, GroupStats(None))
        for line in lines:
            total = stats.line(line.op, line.codec, line.algorithm)
            total.count(line.calls, line.nbytes, line.largest, line.reason)
            total.add(line, line.bound)
    return {label: list(stats.lines.values()) for label, stats in made.items()}
