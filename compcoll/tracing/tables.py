"""Tables of a traced program: ``compcoll report`` prints them, and `compcoll.tracing.page` shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from textwrap import shorten
from typing import NamedTuple

from compcoll.tracing.reader import Program
from compcoll.tracing.rows import Kind, Row, by_kind, grouped, size_class
from compcoll.tracing.words import nbytes_text, seconds_text

__all__ = ["Table", "tables_of"]

#: Length of a way in a table; the list of reasons has them in full.
_WAY = 56
#: Number of rows that a long table shows at its beginning and at its end.
_HALF = 20
_REAL = {"complex64": "float32", "complex128": "float64"}


class Table(NamedTuple):
    """A table in words; all columns but the first ``left`` ones are numbers."""

    title: str
    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]
    left: int


#: Columns of numbers by their headings.
_COLUMNS: dict[str, Callable[[Row], str]] = {
    "calls per rank": lambda row: row.per_rank(),
    "accelerated": lambda row: row.per_rank(accelerated=True),
    "slowest rank": lambda row: seconds_text(row.slowest),
    "mean of ranks": lambda row: seconds_text(row.mean),
    "first call": lambda row: seconds_text(row.first),
    "median of others": lambda row: "-" if row.others is None else seconds_text(row.others),
    "largest": lambda row: seconds_text(row.largest),
    "in calls": lambda row: seconds_text(row.sum("inside")),
    "in flight": lambda row: seconds_text(row.mean),
    "encode": lambda row: seconds_text(row.parts["encode"]),
    "decode": lambda row: seconds_text(row.parts["decode"]),
    "wait": lambda row: seconds_text(row.parts["wait"]),
    "bytes": lambda row: nbytes_text(row.raw),
    "sent": lambda row: nbytes_text(row.wire),
    "ratio": lambda row: f"{row.ratio:.2f}" if row.raw else "-",
    "fallbacks": lambda row: f"{row.sum('fallbacks'):.0f}",
    "error": lambda row: row.error,
}


def tables_of(program: Program) -> list[Table]:
    """Make all tables of a program with calls."""
    hosts = {rank.rank: rank.head["host"] for rank in program.ranks}
    ranks = grouped(program, lambda rank, _: (rank, hosts[rank]))
    for (rank, _), row in ranks.items():
        row.ranks = [rank]
    places = grouped(program, lambda _, call: (call.place, call.op))
    communicators = grouped(program, lambda _, call: (call.comm, call.size))
    sums = "calls per rank,accelerated,slowest rank,mean of ranks,bytes,ratio"
    parts = "calls per rank,in calls,in flight,encode,decode,wait,bytes,ratio"
    tables = [
        *_kinds(program),
        _table("By rank, most time in calls first", "rank,host", _descending(ranks), parts),
        _table("By place in the program", "place,operation", _descending(places), sums),
        _table("By communicator", "communicator,ranks", _descending(communicators), sums),
    ]
    return [table for table in tables if table.rows]


def _kinds(program: Program) -> list[Table]:
    """Times and bytes by kind of call."""
    times = "calls per rank", "slowest rank", "mean of ranks", "first call", "median of others", "largest"
    nbytes = "calls per rank", "bytes", "sent", "ratio", "fallbacks", "error"
    timed, counted = [], []
    for kind, row in by_kind(program).items():
        name = kind.op, kind.dtype, kind.size, shorten(kind.way, _WAY, placeholder=" ...")
        timed.append((*name, *_cells(row, times), _plain(program, kind)))
        counted.append((*name, *_cells(row, nbytes)))
    keys = "operation", "type", "size", "way"
    return [
        _cut(Table("Time by kind of call", (*keys, *times, "plain, ms"), timed, len(keys))),
        _cut(Table("Bytes by kind of call, of all ranks together", (*keys, *nbytes), counted, len(keys))),
    ]


def _plain(program: Program, kind: Kind) -> str:
    """Mean milliseconds of a call of plain MPI in trials of such calls; empty without any."""
    like = kind.op, _REAL.get(kind.dtype, kind.dtype), kind.least
    times = [one.plain for one in program.measured if (one.op, one.dtype, size_class(one.nbytes)) == like]
    return f"{1e3 * sum(times) / len(times):.3g}" if times else ""


def _cells(row: Row, names: Iterable[str]) -> Iterator[str]:
    """The cells of `_COLUMNS` with these headings."""
    return (_COLUMNS[name](row) for name in names)


def _descending(rows: dict) -> dict:
    """Sort groups by the time on their slowest rank."""
    return dict(sorted(rows.items(), key=lambda pair: -pair[1].slowest))


def _table(title: str, keys: str, rows: dict, columns: str) -> Table:
    """A table of groups: headings of their keys, and of `_COLUMNS`, with commas in between."""
    names = columns.split(",")
    cells = [(*map(str, key), *_cells(row, names)) for key, row in rows.items()]
    return _cut(Table(title, (*keys.split(","), *names), cells, len(keys.split(","))))


def _cut(table: Table) -> Table:
    """Keep the first and last rows of a long table."""
    n = len(table.rows)
    if n <= 2 * _HALF:
        return table
    title = f"{table.title}; the first and last {_HALF} of {n}"
    return table._replace(title=title, rows=table.rows[:_HALF] + table.rows[-_HALF:])
