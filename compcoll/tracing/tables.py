"""Tables of a traced program: ``compcoll report`` prints them, and `compcoll.tracing.page` shows them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from compcoll.tracing.reader import Program, TracedCall
from compcoll.tracing.words import plural

__all__ = [
    "REASONS",
    "ReasonRow",
    "Row",
    "Table",
    "by_operation",
    "by_reason",
    "grouped",
    "nbytes_text",
    "reasons_of",
    "seconds_text",
    "size_class",
    "tables_of",
]

#: Title of the list of `reasons_of`.
REASONS = "Why calls were not compressed"
#: A figure in a reason, and the number of places in the program to list for one.
_FIGURE, _PLACES = re.compile(r"\d+(?:\.\d+)?(?:e[+-]\d+)?"), 3
#: Number of rows that a long table shows at its beginning and at its end.
_HALF = 20


@dataclass
class Row:
    """Calls of a kind, of all ranks together."""

    calls: int = 0
    accelerated: int = 0
    fallbacks: int = 0
    least: float = float("inf")  # seconds of the shortest call
    largest: float = 0.0
    seconds: float = 0.0  # of all calls until completion
    inside: float = 0.0  # of their methods
    raw: int = 0  # bytes that would have been sent uncompressed
    wire: int = 0  # bytes that were sent
    bound: float | None = 0.0  # the largest bound of accelerated calls; None if one is not known
    parts: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # seconds by part

    def add(self, call: TracedCall) -> None:
        """Count a call."""
        self.calls += 1
        self.accelerated += call.accelerated
        self.fallbacks += call.fallbacks
        self.least, self.largest = min(self.least, call.total), max(self.largest, call.total)
        self.seconds += call.total
        self.inside += call.inside
        self.raw += call.raw
        self.wire += call.wire
        if call.accelerated:
            self.bound = None if self.bound is None or call.bound is None else max(self.bound, call.bound)
        for name, seconds in call.parts.items():
            self.parts[name] += seconds

    @property
    def mean(self) -> float:
        """Mean seconds of a call."""
        return self.seconds / self.calls

    @property
    def ratio(self) -> float:
        """Uncompressed bytes per byte on the wire; 1 where nothing was sent."""
        return self.raw / self.wire if self.wire else 1.0

    @property
    def error(self) -> str:
        """The error bound in words."""
        if not self.accelerated:
            return "-"
        if self.bound is None:
            return "unknown"
        return "exact" if self.bound == 0 else f"{self.bound:.2g}"


@dataclass
class ReasonRow(Row):
    """Calls of plain MPI whose reasons differ only in figures."""

    places: Counter[str] = field(default_factory=Counter)  # calls by place in the program
    reasons: dict[str, None] = field(default_factory=dict)  # in the order of their first calls

    def add(self, call: TracedCall) -> None:
        """Count a call."""
        super().add(call)
        self.places[call.place] += 1
        self.reasons[call.reason] = None

    @property
    def reason(self) -> str:
        """The reason, with the least and the largest of each figure."""
        figures = zip(*map(_FIGURE.findall, self.reasons), strict=True)
        ranges = [(min(those, key=float), max(those, key=float)) for those in figures]
        told = iter(least if least == most else f"{least} to {most}" for least, most in ranges)
        return _FIGURE.sub(lambda _: next(told), next(iter(self.reasons)))


class Table(NamedTuple):
    """A table in words; all columns but the first ``left`` ones are numbers."""

    title: str
    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]
    left: int


def grouped(program: Program, key: Callable[[int, TracedCall], Hashable]) -> dict:
    """Group the calls of all ranks by ``key(rank, call)``; calls with the key None are left out."""
    rows: dict[Hashable, Row] = {}
    for rank, call in program.calls():
        kind = key(rank, call)
        if kind is not None:
            rows.setdefault(kind, Row()).add(call)
    return rows


def by_operation(program: Program) -> dict[tuple[str, int], Row]:
    """Group calls by method and least size of their class, in this order."""
    return dict(sorted(grouped(program, lambda _, call: (call.op, size_class(call.nbytes))).items()))


def by_reason(program: Program) -> dict[tuple[str, str], ReasonRow]:
    """Group calls of plain MPI by method and reason, most bytes first.

    Reasons that differ only in figures are one group.
    """
    groups: dict[tuple[str, str], ReasonRow] = {}
    for _, call in program.calls():
        if not call.accelerated:
            groups.setdefault((call.op, _FIGURE.sub("#", call.reason)), ReasonRow()).add(call)
    rows = {(op, row.reason): row for (op, _), row in groups.items()}
    return dict(sorted(rows.items(), key=lambda pair: (-pair[1].raw, -pair[1].calls)))


def size_class(nbytes: int) -> int:
    """The least size of a buffer's class, in bytes: 0, 1 KiB, and on by factors of 4."""
    least, bound = 0, 1 << 10
    while nbytes >= bound:
        least, bound = bound, bound << 2
    return least


# -- in words


def seconds_text(value: float) -> str:
    """A time in the unit that suits it."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if value * factor >= 1:
            return f"{value * factor:.3g} {unit}" if value * factor < 1000 else f"{value * factor:.0f} {unit}"
    return f"{1e6 * value:.2f} us"


def nbytes_text(value: int) -> str:
    """A number of bytes in the binary unit that suits it."""
    size = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"


#: Columns of numbers by their headings.
_COLUMNS: dict[str, Callable[[Row], str]] = {
    "calls": lambda row: str(row.calls),
    "accelerated": lambda row: str(row.accelerated),
    "least": lambda row: seconds_text(row.least),
    "mean": lambda row: seconds_text(row.mean),
    "largest": lambda row: seconds_text(row.largest),
    "sum": lambda row: seconds_text(row.seconds),
    "in calls": lambda row: seconds_text(row.inside),
    "encode": lambda row: seconds_text(row.parts["encode"]),
    "decode": lambda row: seconds_text(row.parts["decode"]),
    "wait": lambda row: seconds_text(row.parts["wait"]),
    "MPI": lambda row: seconds_text(row.parts["MPI"]),
    "bytes": lambda row: nbytes_text(row.raw),
    "sent": lambda row: nbytes_text(row.wire),
    "ratio": lambda row: f"{row.ratio:.2f}",
    "fallbacks": lambda row: str(row.fallbacks),
    "error": lambda row: row.error,
}


def tables_of(program: Program) -> list[Table]:
    """Make all tables of a program with calls."""
    hosts = {rank.rank: rank.head.get("host", "") for rank in program.ranks}
    ranks = grouped(program, lambda rank, _: (rank, hosts[rank]))
    places = grouped(program, lambda _, call: (call.place, call.op))
    communicators = grouped(program, lambda _, call: (call.comm, call.size))
    sums = "calls,accelerated,sum,bytes,ratio"
    parts = "calls,in calls,encode,decode,wait,MPI,bytes,ratio"
    tables = [
        *_operations(program),
        _table("By rank, most time in calls first", "rank,host", _descending(ranks, "inside"), parts),
        _table("By place in the program", "place,operation", _descending(places, "seconds"), sums),
        _table("By communicator", "communicator,ranks", _descending(communicators, "seconds"), sums),
    ]
    return [table for table in tables if table.rows]


def reasons_of(program: Program) -> list[str]:
    """Reasons why calls were not compressed: a line for each operation and reason, most bytes first."""
    lines = []
    for (op, reason), row in by_reason(program).items():
        size = f"{plural(row.calls, 'call')}, {nbytes_text(row.raw)}, {seconds_text(row.seconds)}"
        places = [place for place, _ in row.places.most_common(_PLACES)]
        more = ", ..." if len(row.places) > _PLACES else ""
        lines.append(f"{op}, {size}: {reason} [{', '.join(places)}{more}]")
    if len(lines) > 2 * _HALF:
        lines[2 * _HALF :] = [f"and {len(lines) - 2 * _HALF} more, of fewer bytes"]
    return lines


def _operations(program: Program) -> list[Table]:
    """Times and bytes by method and size of the buffer."""
    times = "calls", "least", "mean", "largest", "sum"
    nbytes = "calls", "accelerated", "bytes", "sent", "ratio", "fallbacks", "error"
    timed, counted = [], []
    for (op, least), row in by_operation(program).items():
        size = f"{nbytes_text(least)} to {nbytes_text(4 * least)}" if least else "below 1 KiB"
        timed.append((op, size, *_cells(row, times), _plain(program, op, least)))
        counted.append((op, size, *_cells(row, nbytes)))
    title = "by operation and size of its buffer"
    return [
        Table(f"Time {title}", ("operation", "size", *times, "plain, ms"), timed, 2),
        Table(f"Bytes {title}", ("operation", "size", *nbytes), counted, 2),
    ]


def _plain(program: Program, op: str, least: int) -> str:
    """Mean milliseconds of a call of plain MPI in trials of a method and size class; empty without any."""
    times = [one.plain for one in program.measured if one.op == op and size_class(one.nbytes) == least]
    return f"{1e3 * sum(times) / len(times):.3g}" if times else ""


def _cells(row: Row, names: Iterable[str]) -> Iterator[str]:
    """The cells of `_COLUMNS` with these headings."""
    return (_COLUMNS[name](row) for name in names)


def _descending(rows: dict, attribute: str) -> dict:
    return dict(sorted(rows.items(), key=lambda pair: getattr(pair[1], attribute), reverse=True))


def _table(title: str, keys: str, rows: dict, columns: str) -> Table:
    """A table of groups: headings of their keys, and of `_COLUMNS`, with commas in between."""
    names = columns.split(",")
    cells = [(*map(str, key), *_cells(row, names)) for key, row in rows.items()]
    if len(cells) > 2 * _HALF:
        title += f"; the first and last {_HALF} of {len(cells)}"
        cells = cells[:_HALF] + cells[-_HALF:]
    return Table(title, (*keys.split(","), *names), cells, len(keys.split(",")))
