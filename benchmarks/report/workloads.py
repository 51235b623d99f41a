"""Rows of tables about the solver and about codecs alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..codecs.measure import Row
from ..codecs.output import tables
from ..demo.program import Run

__all__ = ["codecs", "codecs_figure", "solver"]


def codecs(runs: list[dict]) -> list[str]:
    """A table for each family of codecs."""
    return "\n\n".join(tables(_codec_rows(runs))).split("\n")


def codecs_figure(runs: list[dict], path: Path) -> None:
    """Ratio over speed."""
    from ..codecs.plot import draw

    draw(_codec_rows(runs), path)


def _codec_rows(runs: list[dict]) -> list[Row]:
    return [Row.from_dict(row) for run in runs for row in run["rows"]]


def solver(runs: list[dict]) -> list[str]:
    """A column for each codec, as `make demo` prints them."""
    found = [Run(**row) for row in runs[0]["rows"]]
    plain = found[0]
    names = [one.label if one is plain else f"`{one.label}`" for one in found]
    lines = [f"| | {' | '.join(names)} |", "| --- |" + " ---: |" * len(names)]

    def row(name: str, text: Callable[[Run], str], compared: bool = False) -> None:
        cells = ["-" if compared and one is plain else text(one) for one in found]
        lines.append(f"| {name} | {' | '.join(cells)} |")

    row("on the wire, MB", lambda one: f"{one.wire_nbytes / 1e6:.1f}")
    row("ratio", lambda one: f"{one.ratio:.2f}")
    row("link alone, s", lambda one: f"{one.link:.2f}")
    row("Alltoall, s", lambda one: f"{one.exchange:.2f}" if one.exchange else "-")
    row("all steps, s", lambda one: f"{one.seconds:.2f}")
    row("velocity error at the end", lambda one: _exponent(one.error[-1]), compared=True)
    for quantity in ("energy", "dissipation"):
        row(f"{quantity} drift", lambda one, q=quantity: _exponent(one.drift(q, plain)[-1]), compared=True)  # type: ignore[misc]
    return lines


def _exponent(value: float) -> str:
    return "0, exact" if value == 0 else f"{value:.0e}"
