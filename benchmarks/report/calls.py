"""Rows of tables about single calls: small, in both directions, uncompressed, nonblocking, of datatypes."""

from __future__ import annotations

from math import prod
from pathlib import Path

from .tables import CODECS, OPERATIONS, size

__all__ = ["both_directions", "datatypes", "latency", "machinery", "overlap", "shapes", "small"]

FIELDS = {"vorticity.128_128_41": "vorticity", "vorticity.512_512": "vorticity", "wmag91.float": "wind speed"}


def small(runs: list[dict]) -> list[str]:
    """Speed-up: a row for each size and codec, a column for each operation."""
    found = {(row["nbytes"], row["name"], run["operation"]): row for run in runs for row in run["rows"]}
    lines = [
        f"| message | codec | {' | '.join(OPERATIONS.values())} |",
        "| ---: | --- |" + " ---: |" * len(OPERATIONS),
    ]
    for nbytes in dict.fromkeys(nbytes for nbytes, _, _ in found):
        plain = [f"{1e6 * found[nbytes, 'mpi', op]['seconds']['median']:.0f}" for op in OPERATIONS]
        lines.append(f"| {size(nbytes)} | plain MPI, µs | {' | '.join(plain)} |")
        for name in CODECS:
            if (nbytes, name, "alltoall") in found:
                gains = [f"{found[nbytes, name, op]['speedup']:.2f}" for op in OPERATIONS]
                lines.append(f"| {size(nbytes)} | `{name}` | {' | '.join(gains)} |")
    return lines


def both_directions(runs: list[dict]) -> list[str]:
    """Milliseconds: a row for each MPI and operation."""
    names = {"sendrecv": "Sendrecv", "bibw": "Irecv, Isend", "alltoall": "Alltoall"}
    lines = ["| MPI | call | plain, ms | `raw`, ms | `lossless`, ms |", "| --- | --- | ---: | ---: | ---: |"]
    for run in runs:
        times = {row["name"]: f"{1e3 * row['seconds']['median']:.1f}" for row in run["rows"]}
        cells = " | ".join(times[name] for name in ("mpi", "raw", "lossless"))
        lines.append(f"| {run['versions']['mpi']} | {names[run['operation']]} | {cells} |")
    return lines


def machinery(runs: list[dict]) -> list[str]:
    """Microseconds of plain MPI and of codec `raw`, and a line about chunks and threads."""
    (run,) = runs
    sizes = list(dict.fromkeys(row["nbytes"] for row in run["rows"]))
    found = {(row["op"], row["nbytes"]): row for row in run["rows"]}
    lines = [
        "| call | " + " | ".join(f"{size(n)}: plain, µs | `raw`, µs" for n in sizes) + " |",
        "| --- |" + " ---: |" * 2 * len(sizes),
    ]
    for op in dict.fromkeys(op for op, _ in found):
        times = [f"{1e6 * found[op, n][name]:.0f}" for n in sizes for name in ("mpi", "raw")]
        lines.append(f"| {op} | {' | '.join(times)} |")
    return [
        *lines,
        "",
        f"Each further chunk costs {1e6 * run['beyond']['chunk']:.1f} µs. A thread that counts keeps "
        f"{100 * run['counting']:.0f} % of its speed while the main thread waits in a Bcast.",
    ]


def latency(runs: list[dict]) -> list[str]:
    """Microseconds of a message there or back."""
    (run,) = runs
    names = list(dict.fromkeys(row["name"] for row in run["rows"] if row["name"] != "mpi"))
    found = {(row["nbytes"], row["name"]): row["seconds"]["median"] for row in run["rows"]}
    head = " | ".join(f"`{name}`, µs" for name in names)
    lines = [f"| message | plain MPI, µs | {head} |", "| ---: | ---: |" + " ---: |" * len(names)]
    for nbytes in dict.fromkeys(nbytes for nbytes, _ in found):
        cells = " | ".join(f"{1e6 * found[nbytes, name]:.1f}" for name in ("mpi", *names))
        lines.append(f"| {size(nbytes)} | {cells} |")
    return lines


def overlap(runs: list[dict]) -> list[str]:
    """Percent of a call that a computation hides, and percent by which the call slows the computation."""
    sizes = list(dict.fromkeys(row["nbytes"] for row in runs[0]["rows"]))
    lines = [
        "| call | codec | " + " | ".join(f"{size(n)}: hidden, % | slower by, %" for n in sizes) + " |",
        "| --- | --- |" + " ---: |" * 2 * len(sizes),
    ]
    for run in runs:
        rows = {(row["name"], row["nbytes"]): row for row in run["rows"]}
        for name in dict.fromkeys(name for name, _ in rows):
            cells = [f"{rows[name, n][key]:.0f}" for n in sizes for key in ("overlap", "slowed")]
            codec = "plain MPI" if name == "mpi" else f"`{name}`"
            lines.append(f"| {run['operation'].capitalize()} | {codec} | {' | '.join(cells)} |")
    return lines


def datatypes(runs: list[dict]) -> list[str]:
    """Milliseconds of an Alltoallw: a row for each pair of axes."""
    names = {"mpi": "plain MPI", "raw": "`raw`"}
    names |= {f"{name} packed": f"{label}, packed" for name, label in names.items()}
    lines = ["| axes | " + " | ".join(f"{label}, ms" for label in names.values()) + " |"]
    lines.append("| --- |" + " ---: |" * len(names))
    for run in runs:
        times = {row["name"]: f"{1e3 * row['seconds']['median']:.1f}" for row in run["rows"]}
        lines.append(f"| `{_option(run, '--axes')}` | {' | '.join(times[name] for name in names)} |")
    return lines


def shapes(runs: list[dict]) -> list[str]:
    """Flat time over shaped time: a row for each field and codec, a column for each operation."""
    found = {}
    for run in runs:
        shape = _option(run, "--shape")
        times = {row["name"]: row["seconds"]["median"] for row in run["rows"]}
        extents = [int(extent) for extent in shape.split(",")]
        planes = int(_option(run, "--sizes")) // 4 // prod(extents)
        field = f"{FIELDS[Path(_option(run, '--data')).name]}, {'x'.join(map(str, [planes, *extents]))}"
        for name in times:
            if f"{name} {shape}" in times:
                found[field, name, run["operation"]] = times[name] / times[f"{name} {shape}"]
    lines = ["| field | codec | Bcast | Alltoall |", "| --- | --- | ---: | ---: |"]
    for field, name in dict.fromkeys((field, name) for field, name, _ in found):
        gains = " | ".join(f"{found[field, name, op]:.2f}" for op in ("bcast", "alltoall"))
        lines.append(f"| {field} | `{name}` | {gains} |")
    return lines


def _option(run: dict, name: str) -> str:
    """Value of an option in a run's command."""
    words = run["command"].split()
    return words[words.index(name) + 1]
