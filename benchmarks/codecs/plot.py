"""Ratio over speed: the picture that shows which codecs are worth their time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from .measure import Row

__all__ = ["draw", "pareto"]

_OURS, _OTHERS = "#0072B2", "#D55E00"
# Where a label may stand: points to the right of and above its mark, and how it is aligned.
_PLACES = [(7, 0, "left"), (-7, 0, "right")]
_PLACES += [(x, y, a) for d in (9, 16, 24, 33, 43) for x, a in ((6, "left"), (-6, "right")) for y in (d, -d)]


def pareto(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other one equals or exceeds in both, fastest first."""
    front: list[tuple[float, float]] = []
    for speed, ratio in sorted(set(points), reverse=True):
        if not front or ratio > front[-1][1]:
            front.append((speed, ratio))
    return front


def _mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def _panels(rows: Sequence[Row]) -> dict[str, list[Row]]:
    lossless = [row for row in rows if row.family == "lossless"]
    panels = {
        "lossless, fields": [row for row in lossless if row.smooth],
        "lossless, bfloat16": [row for row in lossless if row.data.endswith("bfloat16")],
        "lossy, fields": [row for row in rows if row.family in ("fixed rate", "bounded") and row.smooth],
    }
    return {title: _common(own) for title, own in panels.items() if own}


def _common(rows: Sequence[Row]) -> list[Row]:
    """The rows of those arrays that most codecs took: means over unlike arrays cannot be compared."""
    taken = Counter(row.data for row in rows)
    return [row for row in rows if taken[row.data] == max(taken.values())]


def draw(rows: Sequence[Row], path: str | Path) -> None:
    """Draw geometric means over arrays of a kind, encoding above decoding."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = _panels(rows)
    figure = Figure(figsize=(6.2 * len(panels), 11), layout="constrained")
    renderer = FigureCanvasAgg(figure).get_renderer()
    grid = figure.subplots(2, len(panels), squeeze=False)
    labels = []
    for column, (title, own) in enumerate(panels.items()):
        for line, verb in enumerate(("encode", "decode")):
            labels.append((grid[line, column], _panel(grid[line, column], own, verb)))
            grid[line, column].set_title(f"{verb}: {title}")
    handles, names = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False)
    figure.draw_without_rendering()  # fixes the axes, and labels are placed in their pixels
    for axes, points in labels:
        _label(renderer, axes, points)
    figure.savefig(path, dpi=110)


def _panel(axes, rows: Sequence[Row], verb: str) -> list[tuple[str, float, float, str]]:
    """Marks and the front; returns (name, speed, ratio, colour) of every mark."""
    points = []
    for name in dict.fromkeys(row.codec for row in rows):
        own = [row for row in rows if row.codec == name]
        colour = _OURS if own[0].ours else _OTHERS
        decibels = [r.psnr for r in own if math.isfinite(r.psnr)]
        name += f" ({sum(decibels) / len(decibels):.0f} dB)" if decibels else ""
        points.append((name, _mean([getattr(r, verb) for r in own]), _mean([r.ratio for r in own]), colour))
    if rows[0].family == "lossless":  # with errors a ratio alone is no merit
        front = pareto([(speed, ratio) for _, speed, ratio, _ in points])
        line = {"color": "0.85", "linewidth": 5, "zorder": 0}
        axes.plot(*zip(*front, strict=True), **line, label="none is better in both")
    for colour, marker, label in ((_OURS, "o", "compcoll"), (_OTHERS, "s", "others")):
        own = [(speed, ratio) for _, speed, ratio, c in points if c == colour]
        if own:
            axes.scatter(*zip(*own, strict=True), color=colour, marker=marker, s=42, zorder=3, label=label)
    axes.set(xscale="log", xlabel=f"{verb}: GB/s of uncompressed data, one thread", ylabel="ratio")
    axes.margins(0.24, 0.12)
    if max(ratio for _, _, ratio, _ in points) > 6:
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(alpha=0.3, which="both")
    return points


def _label(renderer, axes, points: Sequence[tuple[str, float, float, str]]) -> None:
    """Names beside the marks, each at the first place where it covers neither mark nor name."""
    from matplotlib.text import Text

    frame = axes.get_window_extent(renderer)
    scale = renderer.dpi / 72
    taken = []
    for _, speed, ratio, _ in points:
        x, y = axes.transData.transform((speed, ratio))
        taken.append((x - 4 * scale, y - 4 * scale, x + 4 * scale, y + 4 * scale))
    for name, speed, ratio, colour in sorted(points, key=lambda p: (-p[2], p[1])):
        for dx, dy, align in _PLACES:
            text = axes.annotate(
                name, (speed, ratio), (dx, dy), textcoords="offset points", ha=align, va="center",
                fontsize=8, color=colour, arrowprops=_leader(dy, colour),
            )  # fmt: skip
            text.update_positions(renderer)
            # That of the text alone; an annotation's own has its line to the mark in it.
            box = Text.get_window_extent(text, renderer)
            own = (box.x0 - 1, box.y0 - 1, box.x1 + 1, box.y1 + 1)
            inside = own[0] > frame.x0 and own[2] < frame.x1 and own[1] > frame.y0 and own[3] < frame.y1
            if inside and not any(_overlap(own, other) for other in taken):
                break
            if (dx, dy, align) != _PLACES[-1]:
                text.remove()
        taken.append(own)


def _leader(dy: float, colour: str) -> dict | None:
    """A line from a label to its mark, where they are apart."""
    return {"arrowstyle": "-", "color": colour, "linewidth": 0.6, "shrinkB": 2} if abs(dy) > 9 else None


def _overlap(a, b) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
