"""The schedule of ``compcoll explain --schedule``: what ranks do, and when in virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from compcoll.schedule.graph import Kind, Schedule
from compcoll.schedule.virtual import Result

__all__ = ["draw", "lines"]

#: Ranks that are drawn.
MOST_RANKS = 8
_COLOURS = {
    Kind.ENCODE: "C0",
    Kind.DECODE: "C2",
    Kind.DECODE_ADD: "C8",
    Kind.ADD: "C9",
    Kind.COPY: "C7",
    Kind.ROUND: "C7",
    Kind.SETTLE: "C4",
    Kind.SEND: "C1",
    Kind.RECV: "C5",
}


def lines(schedule: Schedule, result: Result) -> Iterator[str]:
    """The schedule of a rank, with the milliseconds from when to when each operation takes it.

    Of a message that is what it takes of the port, and of a receive, if messages take processors, that.
    """
    mine = result.intervals[result.intervals["rank"] == schedule.rank]
    when: dict[int, tuple[float, float]] = {}
    for op, start, end in zip(mine["op"].tolist(), mine["start"].tolist(), mine["end"].tolist(), strict=True):
        before = when.get(op, (start, end))
        when[op] = min(before[0], start), max(before[1], end)
    title, *ops = str(schedule).splitlines()
    yield f"{'ms':>8}{'':9}{title}"
    for i, text in enumerate(ops):
        start, end = when.get(i, (-1.0, -1.0))
        times = f"{1e3 * start:8.3f}-{1e3 * end:8.3f}" if start >= 0 else ""
        yield f"{times:17}{text}"


def draw(schedules: list[Schedule], result: Result, title: str, path: Path) -> None:
    """Draw the processors and ports of the first ranks over time; the file's suffix gives the format."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    shown = schedules[:MOST_RANKS]
    figure = Figure(figsize=(12, 1.5 + 0.55 * len(shown)), layout="constrained")
    axes = figure.subplots()
    seen: set[Kind] = set()
    for schedule in shown:
        mine = result.intervals[result.intervals["rank"] == schedule.rank]
        kinds = schedule.ops["kind"][mine["op"]]
        for kind in map(Kind, np.unique(kinds).tolist()):
            for on_wire in (0, 1):
                part = mine[(kinds == kind) & (mine["on_wire"] == on_wire)]
                if not len(part):
                    continue
                seen.add(kind)
                spans = list(zip(1e3 * part["start"], 1e3 * (part["end"] - part["start"]), strict=True))
                place = schedule.rank - 0.38 + 0.4 * on_wire, 0.36
                axes.broken_barh(spans, place, facecolors=_COLOURS[kind])
    axes.set(xlabel="ms", yticks=[s.rank for s in shown], title=title)
    axes.set_yticklabels([f"rank {s.rank}: processors\nport" for s in shown])
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.grid(axis="x", alpha=0.3)
    patches = [Patch(color=_COLOURS[kind], label=kind.name.lower()) for kind in Kind if kind in seen]
    figure.legend(handles=patches, loc="outside right center", frameon=False)
    figure.savefig(path, dpi=120)
