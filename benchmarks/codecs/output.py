"""Output of the comparison of codecs: Markdown, JSON."""

from __future__ import annotations

import json
import math
import os
import platform
import shlex
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

from ..osu.machine import commit, machine
from .measure import CALLS, Row

__all__ = ["about", "heading", "markdown", "tables", "write_json"]

_PACKAGES = ["numpy", "zfpy", "blosc2", "zstandard", "lz4", "pcodec", "fpzip", "zipnn"]
_TITLES = {
    "lossless": "Lossless: ratio, and GB/s to encode / decode",
    "fixed rate": "Fixed rate: PSNR in dB, and GB/s to encode / decode",
    "bounded": "Error-bounded and block-scaled: ratio, PSNR in dB, and GB/s to encode / decode",
}


def about(repeats: int) -> dict:
    """Machine, versions, load and command, which every published figure needs."""
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "machine": machine(),
        "repeats": repeats,
        "load": os.getloadavg()[0],
        "commit": commit(),
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
        "versions": versions,
    }


def heading(info: dict) -> str:
    """One line about the machine and one about the versions."""
    names = ", ".join(f"{name} {number}" for name, number in info["versions"].items())
    about = info["machine"]
    return (
        f"{about['processor']}, {about['cores']} cores, {about['level']}, one thread, "
        f"least processor time of {CALLS * info['repeats'] + 1} calls, load {info['load']:.1f}\n{names}"
    )


def _decibels(psnr: float) -> str:
    return f"{psnr:.1f}" if math.isfinite(psnr) else ""


def _speed(gbytes: float) -> str:
    return f"{gbytes:.{1 if gbytes >= 9.95 else 2 if gbytes >= 0.095 else 3}f}"


def markdown(rows: Sequence[Row], info: dict, most: int = 4) -> str:
    """The machine, and the tables of `tables`, and wrong results."""
    parts = [heading(info).splitlines()[0], *tables(rows, most)]
    wrong = [f"{row.codec} on {row.data}" for row in rows if not row.sound]
    if wrong:
        parts.append(f"Wrong results: {', '.join(wrong)}.")
    return "\n\n".join(parts) + "\n"


def tables(rows: Sequence[Row], most: int = 4) -> list[str]:
    """A table for each family of codecs, with a column for each of up to `most` arrays of different kinds.

    A dash means that a codec does not take such data. The last line has the speed of a copy.
    """
    parts = []
    for family, title in _TITLES.items():
        own = [row for row in rows if row.family == family]
        if own:
            parts.append(f"**{title}**\n\n{_family_table(own, family, most)}")
    copies = [max(row.encode, row.decode) for row in rows if row.family == "copy"]
    return [*parts, f"A copy by NumPy runs at {min(copies):.1f} to {max(copies):.1f} GB/s."]


def _family_table(rows: Sequence[Row], family: str, most: int) -> str:
    columns = _headline(rows, most)
    names = dict.fromkeys(row.codec for row in rows)
    cells = {(row.codec, row.data): _cell(row, family) for row in rows}
    lines = ["| codec | " + " | ".join(columns) + " |", "| --- |" + " --- |" * len(columns)]
    for name in names:
        if any((name, data) in cells for data in columns):
            ours = next(row.ours for row in rows if row.codec == name)
            first = f"**{name}**" if ours else name
            lines.append(
                f"| {first} | " + " | ".join(cells.get((name, data), "-") for data in columns) + " |"
            )
    return "\n".join(lines)


def _headline(rows: Sequence[Row], most: int) -> list[str]:
    """Arrays for the columns: first one for each dtype and smoothness, then others, up to `most`."""
    first: dict[tuple[bool, str], str] = {}
    for row in rows:
        first.setdefault((row.smooth, row.data.rpartition(", ")[2]), row.data)
    names = dict.fromkeys(row.data for row in rows)
    chosen = [*first.values(), *(name for name in names if name not in first.values())][:most]
    return [name for name in names if name in chosen]


def _cell(row: Row, family: str) -> str:
    speeds = f"{_speed(row.encode)} / {_speed(row.decode)}"
    if family == "lossless":
        return f"{row.ratio:.2f}, {speeds}"
    if family == "fixed rate":
        gain = "" if row.encode_gain is None else f" ({row.encode_gain:.1f}x / {row.decode_gain:.1f}x)"
        return f"{_decibels(row.psnr)}, {speeds}{gain}"
    return f"{row.ratio:.1f}, {_decibels(row.psnr)}, {speeds}"


def write_json(rows: Sequence[Row], info: dict, path: Path) -> None:
    """Write all measurements to a file."""
    path.write_text(json.dumps({**info, "rows": [row.as_dict() for row in rows]}, indent=1, default=_plain))


def _plain(value):
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} has no place in JSON")
