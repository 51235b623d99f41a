"""Tables of docs/nodes.md: two levels in the lab, and predictions for many ranks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile

from .tables import OPERATIONS, gbit, size

__all__ = ["by_ranks", "inside", "limits", "speedups", "summary"]

#: Compression pays if the speed-up is above this.
PAYS = 1.05
#: Predictions by the number of ranks are for these Gb/s, ranks of a node and cores of a rank.
SHOWN = ("100", 8, 4)
#: Gb/s of a node in the table of speed-ups.
RATES = ("10", "25", "100", "400")


def inside(runs: list[dict]) -> list[str]:
    """Speed-up of two levels."""
    links = list(dict.fromkeys(map(gbit, runs)))
    head = "".join(f" {link} Gb/s |" for link in links)
    lines = [f"| operation | codec |{head}", "| --- | --- |" + " ---: |" * len(links)]
    cells: dict[tuple, list[str]] = {}
    for run in runs:
        for row in run["rows"]:
            if row["name"] != "mpi":
                key = (OPERATIONS[run["operation"]], row["nbytes"], row["name"])
                cells.setdefault(key, []).append(f"{row['speedup']:.2f}")
    for (op, nbytes, name), values in cells.items():
        lines.append(f"| {op} of {size(nbytes)} | `{name}` | {' | '.join(values)} |")
    return lines


def limits(runs: list[dict]) -> list[str]:
    """Most Gb/s of a node, among those simulated, up to which the codec pays on the most ranks."""
    rows = _most_ranks(runs[0])
    rates = sorted({row["network"] for row in rows}, key=float)
    pays = {(*_place(row), _column(row), row["network"]) for row in rows if row["speedup"] > PAYS}
    cells = {}
    for row in rows:
        key = (*_place(row), _column(row))
        paying = list(takewhile(lambda rate, key=key: (*key, rate) in pays, rates))
        cells[key] = "all" if paying == rates else paying[-1] if paying else "none"
    return _by_operations(rows, ("ranks of a node", "cores of a rank"), _place, cells)


def speedups(runs: list[dict]) -> list[str]:
    """Speed-up for the most ranks."""
    rows = [row for row in _most_ranks(runs[0]) if row["network"] in RATES]
    cells = {(row["network"], *_place(row), _column(row)): f"{row['speedup']:.2f}" for row in rows}
    headings = ("Gb/s of a node", "ranks of a node", "cores of a rank")
    return _by_operations(rows, headings, lambda row: (row["network"], *_place(row)), cells)


def _most_ranks(run: dict) -> list[dict]:
    most = max(row["ranks"] for row in run["rows"])
    return [row for row in run["rows"] if row["ranks"] == most]


def by_ranks(runs: list[dict]) -> list[str]:
    """Speed-up over the number of ranks, for one kind of node."""
    rows = [row for row in runs[-1]["rows"] if (row["network"], *_place(row)) == SHOWN]
    cells = {(row["ranks"], _column(row)): f"{row['speedup']:.2f}" for row in rows}
    return _by_operations(rows, ("ranks",), lambda row: (row["ranks"],), cells)


def summary(runs: list[dict]) -> list[str]:
    """Lines of the report: speeds of a core, and all tables."""
    run = runs[0]
    speeds = [f"{word} {run[name] / 1e9:.1f} GB/s" for word, name in _SPEEDS]
    lines = [f"{run['codec']} on one core: {', '.join(speeds)}, ratio {run['ratio']:.2f}."]
    lines.append(f"Assumed: all cores of a node together move {run['node_memory'] / 1e9:g} GB/s of memory.")
    for title, table in (
        ("Gb/s of a node up to which it pays", limits),
        ("Speed-up on the most ranks", speedups),
        (f"Speed-up on nodes of {SHOWN[0]} Gb/s, {SHOWN[1]} ranks, {SHOWN[2]} cores a rank", by_ranks),
    ):
        lines += ["", f"{title}:", "", *table(runs)]
    return lines


_SPEEDS = (("encoding", "encode"), ("decoding", "decode"), ("memory", "memory"))


def _place(row: dict) -> tuple:
    return row["ranks_per_node"], row["cores"]


def _column(row: dict) -> str:
    return f"{row['op']}, {size(row['nbytes'])}"


def _by_operations(
    rows: list[dict], headings: tuple, key_of: Callable[[dict], tuple], cells: dict[tuple, str]
) -> list[str]:
    columns = list(dict.fromkeys(map(_column, rows)))
    lines = [
        f"| {' | '.join((*headings, *columns))} |",
        "|" + " ---: |" * (len(headings) + len(columns)),
    ]
    for key in sorted(set(map(key_of, rows)), key=lambda key: [float(part) for part in key]):
        values = [cells.get((*key, column), "-") for column in columns]
        lines.append(f"| {' | '.join(map(str, (*key, *values)))} |")
    return lines
