"""The tables of a report as words: on a terminal and on a page they are the same."""

from __future__ import annotations

from typing import NamedTuple

from compcoll.tracing import tables
from compcoll.tracing.predicted import Predictor
from compcoll.tracing.reader import Program
from compcoll.tracing.tables import Row

__all__ = ["Table", "nbytes", "seconds", "tables_of"]

#: Places that are shown.
MOST_PLACES = 30


class Table(NamedTuple):
    """A table; all columns but the first ``left`` ones are numbers."""

    title: str
    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]
    left: int


def tables_of(program: Program, predictor: Predictor) -> list[Table]:
    """All tables of a program that has calls."""
    numbers = ("calls", "accelerated", "least", "mean", "largest", "sum", "bytes", "ratio", "fallbacks")
    n = len(numbers) + 3 + (predictor.machine is not None)
    rows = [
        (op, _class(least), *_numbers(row), _error(row), _predicted(predictor.seconds(op, row)))[:n]
        for (op, least), row in tables.by_operation(program).items()
    ]
    operation = Table(
        "By operation and size of its buffer",
        ("operation", "size", *numbers, "error", "plain MPI, predicted")[:n],
        rows,
        2,
    )
    communicator = Table(
        "By communicator",
        ("communicator", "ranks", *numbers),
        [(name, str(n), *_numbers(row)) for (name, n), row in tables.by_communicator(program).items()],
        1,
    )
    places = list(tables.by_place(program).items())
    title = "By place" + (f", the first {MOST_PLACES} of {len(places)}" if len(places) > MOST_PLACES else "")
    place = Table(
        title,
        ("place", "operation", *numbers),
        [(*key, *_numbers(row)) for key, row in places[:MOST_PLACES]],
        2,
    )
    reason = Table(
        "Calls of plain MPI, by reason",
        ("reason", "calls", "sum", "bytes"),
        [
            (why, str(row.calls), seconds(row.seconds), nbytes(row.raw))
            for why, row in tables.by_reason(program).items()
        ],
        1,
    )
    return [table for table in (operation, communicator, place, reason) if table.rows]


def _numbers(row: Row) -> tuple[str, ...]:
    return (
        str(row.calls),
        str(row.accelerated),
        seconds(row.least),
        seconds(row.mean),
        seconds(row.largest),
        seconds(row.seconds),
        nbytes(row.raw),
        f"{row.ratio:.2f}",
        str(row.fallbacks),
    )


def _error(row: Row) -> str:
    if not row.accelerated:
        return "-"
    if row.bound is None:
        return "unknown"
    return "exact" if row.bound == 0 else f"{row.bound:.2g}"


def _predicted(value: float | None) -> str:
    return "-" if value is None else seconds(value)


def _class(least: int) -> str:
    return f"{nbytes(least)} to {nbytes(4 * least)}" if least else "below 1 KiB"


def seconds(value: float) -> str:
    """A time in the unit that suits it."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if value * factor >= 1:
            return f"{value * factor:.3g} {unit}" if value * factor < 1000 else f"{value * factor:.0f} {unit}"
    return f"{1e6 * value:.2f} us"


def nbytes(value: int) -> str:
    """A number of bytes in the binary unit that suits it."""
    size = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"
