"""Figure of compression ratio over speed, which shows which codecs are worth their time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from .measure import Row

__all__ = ["draw"]

_MARKERS = "ovs^DXP*<>pdhH8"


def _panels(rows: Sequence[Row]) -> dict[str, list[Row]]:
    lossless = [row for row in rows if row.family == "lossless"]
    panels = {
        "lossless, fields": [row for row in lossless if row.smooth],
        "lossless, bfloat16": [row for row in lossless if row.data.endswith("bfloat16")],
        "lossy, fields": [row for row in rows if row.family in ("fixed rate", "bounded") and row.smooth],
    }
    return {title: _common(own) for title, own in panels.items() if own}


def _common(rows: Sequence[Row]) -> list[Row]:
    """Rows of the arrays that the most codecs take, so that all means are over the same arrays."""
    taken = Counter(row.data for row in rows)
    return [row for row in rows if taken[row.data] == max(taken.values())]


def _mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def draw(rows: Sequence[Row], path: str | Path) -> None:
    """Draw geometric means over arrays of a kind, encoding above decoding; other libraries' are hollow."""
    from matplotlib.figure import Figure

    panels = _panels(rows)
    figure = Figure(figsize=(5.4 * len(panels), 10), layout="constrained")
    grid = figure.subplots(3, len(panels), squeeze=False, height_ratios=[5, 5, 3])
    for column, (title, own) in enumerate(panels.items()):
        for axes, verb in zip(grid[:, column], ("encode", "decode"), strict=False):
            _panel(axes, own, verb)
            axes.set_title(f"{verb}: {title}")
        grid[2, column].axis("off")
        grid[2, column].legend(*axes.get_legend_handles_labels(), loc="upper center", ncols=2, fontsize=8)
    figure.savefig(path, dpi=110)


def _panel(axes, rows: Sequence[Row], verb: str) -> None:
    for i, name in enumerate(dict.fromkeys(row.codec for row in rows)):
        own = [row for row in rows if row.codec == name]
        speed, ratio = _mean([getattr(r, verb) for r in own]), _mean([r.ratio for r in own])
        decibels = [r.psnr for r in own if math.isfinite(r.psnr)]
        label = name + (f" ({sum(decibels) / len(decibels):.0f} dB)" if decibels else "")
        fill = f"C{i % 10}" if own[0].ours else "none"
        axes.scatter(
            speed,
            ratio,
            marker=_MARKERS[i % len(_MARKERS)],
            s=60,
            facecolors=fill,
            edgecolors=f"C{i % 10}",
            label=label,
        )
    axes.set(xscale="log", xlabel=f"{verb}: GB/s of uncompressed data, one thread", ylabel="ratio")
    if max(_mean([r.ratio for r in rows if r.codec == row.codec]) for row in rows) > 6:
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("")
    axes.grid(alpha=0.3, which="both")
