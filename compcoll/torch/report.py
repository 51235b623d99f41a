"""Statistics of the calls of all process groups, and of hooks beside other backends, as a table."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from threading import Lock
from typing import Any

import torch.distributed as dist

from compcoll.codecs import codec
from compcoll.engine.report import Stats
from compcoll.policy.policy import below_min_nbytes
from compcoll.torch.groups import all_groups

__all__ = ["CallStats", "GroupStats", "TrainingReport", "report", "report_hook"]

#: Calls whose statistics are not added up yet.
_MOST_UNCOUNTED = 1000


@dataclass(eq=False)
class CallStats(Stats):
    """Sums over calls of one operation by one codec and algorithm; sent bytes are those of compressed calls.

    Attributes
    ----------
    op, codec, algorithm : str
        MPI's name of the operation; ``"-"`` and ``"mpi"`` for uncompressed calls. A hook's object and the
        direction of its exchanges, and ``"hook"``.
    reason : str
        The reason for codec and algorithm, of the last call.
    calls : int
    nbytes, largest : int
        Bytes of tensors that are reduced, and of other operations' messages: their sum, and the largest.
    relative : float or None
        Largest norm of a hook's errors of coding, as a fraction of the norm of the values; measured in one
        exchange of 61. None for operations of the backend.
    """

    op: str = ""
    codec: str = "-"
    algorithm: str = "mpi"
    reason: str = ""
    calls: int = 0
    nbytes: int = 0
    largest: int = 0
    relative: float | None = None

    def count(self, calls: int, nbytes: int, largest: int, reason: str) -> None:
        """Count calls."""
        self.calls += calls
        self.nbytes += nbytes
        self.largest = max(self.largest, largest)
        self.reason = reason

    def add_relative(self, relative: float | None) -> None:
        """Raise the largest relative error; None and numbers that are not finite leave it."""
        if relative is not None and isfinite(relative):
            self.relative = max(relative, self.relative or 0.0)

    def add_line(self, line: CallStats) -> None:
        """Add the calls of another line."""
        self.count(line.calls, line.nbytes, line.largest, line.reason)
        self.add(line, line.bound)
        self.add_relative(line.relative)

    @property
    def error(self) -> str:
        """The largest relative error in percent, or else the bound."""
        if self.relative is not None:
            return f"{100 * self.relative:.2g} % of the norm"
        bound = "unknown" if self.bound is None else f"{self.bound:.3g}"
        return f"{bound} (rounding of the sum)" if self.bound and codec(self.codec).lossless else bound

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of a table."""
        sent: tuple[str, ...] = ("-",) * 4
        if self.codec != "-":
            ratio = f"{self.raw_nbytes / self.wire_nbytes:.2f}" if self.wire_nbytes else "-"
            sent = (str(self.wire_nbytes), ratio, f"{1e3 * self.stages['total']:.1f}", self.error)
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
#: Labels of hooks' groups, and the lines of each hook by any key.
_hooks: list[tuple[str, Mapping[Any, CallStats]]] = []


def report_hook(label: str, lines: Mapping[Any, CallStats]) -> None:
    """Include a hook's lines, which may grow, in reports."""
    _hooks.append((label, lines))


@dataclass(frozen=True)
class TrainingReport:
    """Sums over the calls of all process groups and hooks, on this rank or on all.

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
    """Sum up the calls of all process groups, and the exchanges of all hooks, so far.

    Parameters
    ----------
    together : bool
        True to add up all ranks' calls, which is collective over the default group. Without torch's groups
        the report has this rank's calls alone.

    Returns
    -------
    TrainingReport

    Raises
    ------
    torch.distributed.DistBackendError
        With ``together``, if a rank does not call it within the group's time-out, or calls something else.
    """
    mine = _ended + [(group.label, list(group.stats.lines.values())) for group in all_groups()]
    mine += [(label, list(lines.values())) for label, lines in _hooks]
    everyone = _gathered(mine) if together and dist.is_initialized() else [mine]
    return TrainingReport(_summed(pair for pairs in everyone for pair in pairs), len(everyone))


def _gathered(mine: Any) -> list[Any]:
    """Gather an object of each rank; a group of this backend with all ranks names those that do not call."""
    for group in all_groups():
        if group.size == dist.get_world_size():
            group.flush()
            return group.gather_objects("report", mine)
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return everyone


def _summed(groups: Iterable[tuple[str, list[CallStats]]]) -> dict[str, list[CallStats]]:
    """One line for each operation, codec and algorithm of groups with the same label."""
    made: dict[str, GroupStats] = {}
    for label, lines in groups:
        stats = made.setdefault(label, GroupStats(None))
        for line in lines:
            stats.line(line.op, line.codec, line.algorithm).add_line(line)
    return {label: list(stats.lines.values()) for label, stats in made.items()}
