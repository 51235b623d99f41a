"""Groups of a traced program's calls, such as the calls of a kind, and what they took on each rank."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from statistics import median
from typing import NamedTuple

from compcoll.tracing.reader import Program, TracedCall
from compcoll.tracing.words import nbytes_text

__all__ = ["Kind", "Row", "by_kind", "by_reason", "grouped", "in_flight", "kind_of", "size_class"]

#: A figure in a reason.
_FIGURE = re.compile(r"\d+(?:\.\d+)?(?:e[+-]\d+)?")


class Kind(NamedTuple):
    """Calls that share a row of the tables."""

    op: str
    dtype: str
    least: int  # the least size of the buffer in its class
    way: str = ""  # codec and algorithm, or the reason why MPI served the calls

    @property
    def name(self) -> str:
        """The operation, and its type if that is known."""
        return self.op if self.dtype in ("-", "unknown") else f"{self.op} of {self.dtype}"

    @property
    def size(self) -> str:
        """The class of sizes in words."""
        return f"{nbytes_text(self.least)} to {nbytes_text(4 * self.least)}" if self.least else "below 1 KiB"


@dataclass
class Row:
    """Calls of a group; its sums are read after the last `add`."""

    ranks: list[int]  # all ranks that left a file
    by_rank: dict[int, list[TracedCall]] = field(default_factory=lambda: defaultdict(list))

    def add(self, rank: int, call: TracedCall) -> None:
        """Add a call of a rank; calls of a rank come in the order of their starts."""
        self.by_rank[rank].append(call)

    def __iter__(self) -> Iterator[TracedCall]:
        for calls in self.by_rank.values():
            yield from calls

    def sum(self, attribute: str) -> float:
        """Sum of an attribute over the calls of all ranks."""
        return sum(getattr(call, attribute) for call in self)

    # -- calls

    @property
    def calls(self) -> int:
        """Calls of all ranks together."""
        return sum(map(len, self.by_rank.values()))

    @property
    def accelerated(self) -> int:
        """Calls of all ranks that did not go to MPI unchanged."""
        return int(self.sum("accelerated"))

    def per_rank(self, accelerated: bool = False) -> str:
        """Calls of a rank: one number, or the least and the largest."""
        counts = [
            sum(call.accelerated or not accelerated for call in self.by_rank.get(r, ())) for r in self.ranks
        ]
        least, most = min(counts), max(counts)
        return str(most) if least == most else f"{least} to {most}"

    # -- times

    @cached_property
    def _seconds(self) -> list[float]:
        """Seconds with a call in flight, of each rank."""
        return [in_flight(self.by_rank.get(rank, ())) for rank in self.ranks]

    @property
    def slowest(self) -> float:
        """Seconds in which at least one call was in flight, on the rank where these are most."""
        return max(self._seconds)

    @property
    def mean(self) -> float:
        """Seconds in which at least one call was in flight, mean of ranks."""
        return sum(self._seconds) / len(self.ranks)

    @property
    def first(self) -> float:
        """Seconds of a rank's first call, on the slowest rank."""
        return max(calls[0].total for calls in self.by_rank.values())

    @property
    def others(self) -> float | None:
        """Median seconds of all calls but each rank's first; None if there are none."""
        times = [call.total for calls in self.by_rank.values() for call in calls[1:]]
        return median(times) if times else None

    @property
    def largest(self) -> float:
        """Seconds of the longest call."""
        return max(call.total for call in self)

    @cached_property
    def parts(self) -> dict[str, float]:
        """Seconds of all calls by activity, of all ranks together; calls that overlap count in full."""
        parts: dict[str, float] = defaultdict(float)
        for call in self:
            for name, seconds in call.parts.items():
                parts[name] += seconds
        return parts

    @property
    def coding(self) -> float:
        """Seconds of encoding and decoding, mean of ranks."""
        return (self.parts["encode"] + self.parts["decode"]) / len(self.ranks)

    def shares(self, run: float) -> dict[str, float]:
        """Share of a run with a call in flight, mean of ranks, divided in proportion to `parts`."""
        total = sum(self.parts.values())
        whole = min(self.mean / run, 1.0) if run else 0.0
        return {name: whole * seconds / total for name, seconds in self.parts.items()} if total else {}

    # -- bytes

    @cached_property
    def raw(self) -> int:
        """Bytes that the ranks together would have sent uncompressed."""
        return int(self.sum("raw"))

    @cached_property
    def wire(self) -> int:
        """Bytes that the ranks together sent."""
        return int(self.sum("wire"))

    @property
    def ratio(self) -> float:
        """Uncompressed bytes per byte on the wire; 1 where nothing was sent."""
        return self.raw / self.wire if self.wire else 1.0

    @property
    def error(self) -> str:
        """The largest error bound of accelerated calls in words."""
        bounds = [call.bound for call in self if call.accelerated]
        if not bounds:
            return "-"
        if None in bounds:
            return "unknown"
        bound = max(filter(None, bounds), default=0.0)
        return "exact" if bound == 0 else f"{bound:.2g}"

    # -- reasons

    @property
    def reason(self) -> str:
        """The reason of calls that differ only in its figures, with the least and the largest of each."""
        reasons = dict.fromkeys(call.reason for call in self)
        figures = zip(*map(_FIGURE.findall, reasons), strict=True)
        ranges = [(min(those, key=float), max(those, key=float)) for those in figures]
        told = iter(least if least == most else f"{least} to {most}" for least, most in ranges)
        return _FIGURE.sub(lambda _: next(told), next(iter(reasons)))

    @property
    def places(self) -> Counter[str]:
        """Calls by place in the program."""
        return Counter(call.place for call in self)


def in_flight(calls: Iterable[TracedCall]) -> float:
    """Seconds in which at least one of these calls was in flight; calls come in the order of their starts."""
    seconds, until = 0.0, -inf
    for call in calls:
        end = call.start + call.total
        if end > until:
            seconds += end - max(call.start, until)
            until = end
    return seconds


def grouped(program: Program, key: Callable[[int, TracedCall], Hashable]) -> dict:
    """Group the calls of all ranks by ``key(rank, call)``; calls with the key None are left out."""
    ranks = [rank.rank for rank in program.ranks]
    rows: dict[Hashable, Row] = {}
    for rank, call in program.calls():
        kind = key(rank, call)
        if kind is not None:
            rows.setdefault(kind, Row(ranks)).add(rank, call)
    return rows


def by_kind(program: Program) -> dict[Kind, Row]:
    """Group calls by operation, type, class of size and way; the slowest ones first."""
    rows = grouped(program, lambda _, call: kind_of(call)._replace(way=_way_of(call)))
    slowest: dict[tuple, float] = defaultdict(float)
    for kind, row in rows.items():
        slowest[kind[:3]] += row.slowest
    found = sorted(rows.items(), key=lambda pair: (-slowest[pair[0][:3]], pair[0][:3], -pair[1].slowest))
    return {
        kind if next(iter(row)).accelerated else kind._replace(way=f"MPI: {row.reason}"): row
        for kind, row in found
    }


def by_reason(program: Program) -> dict[tuple[str, str], Row]:
    """Group calls of plain MPI by method and reason, most bytes first.

    Reasons that differ only in figures are one group.
    """
    groups = grouped(program, lambda _, call: None if call.accelerated else (call.op, _way_of(call)))
    rows = {(op, row.reason): row for (op, _), row in groups.items()}
    return dict(sorted(rows.items(), key=lambda pair: (-pair[1].raw, -pair[1].calls)))


def kind_of(call: TracedCall) -> Kind:
    """The kind of a call, whichever way it went."""
    return Kind(call.op, call.dtype, size_class(call.nbytes))


def _way_of(call: TracedCall) -> str:
    """Codec and algorithm of an accelerated call, or the reason of another one, without figures."""
    if not call.accelerated:
        return _FIGURE.sub("#", call.reason)
    return f"{call.codec or 'codec of the sender'}, {call.algorithm or 'unknown algorithm'}"


def size_class(nbytes: int) -> int:
    """The least size of a buffer's class, in bytes: 0, 1 KiB, and on by factors of 4."""
    least, bound = 0, 1 << 10
    while nbytes >= bound:
        least, bound = bound, bound << 2
    return least
