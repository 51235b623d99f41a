"""The report's figures, drawn by matplotlib as SVG that a page holds."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

import numpy as np

__all__ = ["available", "bars", "scatter", "timeline"]

#: Colours that differ to eyes that see red and green alike, and the words of legends.
COLOURS = {
    "encode": "#0072b2",
    "decode": "#009e73",
    "wait": "#e69f00",
    "other": "#b8b8b8",
    "MPI": "#cc79a7",
    "uncompressed": "#b8b8b8",
    "wire": "#0072b2",
    "accelerated": "#0072b2",
    "plain": "#d55e00",
}
_WORDS = {
    "other": "the rest of accelerated calls",
    "MPI": "calls that MPI served",
    "wire": "sent",
    "uncompressed": "without compression",
    "plain": "plain MPI, predicted",
}
_WIDTH = 11.0
_STYLE: Any = {"svg.fonttype": "none", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}


def available() -> bool:
    """Whether matplotlib is installed."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        return False
    return True


def bars(rows: Sequence[tuple[str, dict[str, float], str]]) -> str:
    """Horizontal bars, one a row: its name, the parts side by side, and the words behind them."""
    figure, axes = _axes(0.5 + 0.3 * len(rows))
    for y, (_, parts, words) in enumerate(rows):
        left = 0.0
        for name, value in parts.items():
            axes.barh(y, value, left=left, color=COLOURS[name], label=_WORDS.get(name, name))
            left += value
        axes.annotate(words, (left, y), xytext=(5, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(rows)), [name for name, *_ in rows])
    axes.set_xticks([])
    axes.margins(x=0.12)
    axes.invert_yaxis()
    return _svg(figure, axes)


def timeline(rows: Sequence[tuple[str, Sequence[dict[str, float]]]], seconds: float) -> str:
    """A row a rank: for each bin of time the fractions that its parts take, stacked."""
    figure, axes = _axes(0.7 + 0.45 * len(rows))
    for y, (_, bins) in enumerate(rows):
        edges = np.linspace(0, seconds, len(bins) + 1)
        bottoms = np.full(len(edges), float(y))
        for name in COLOURS:
            heights = np.array([0.85 * min(one.get(name, 0.0), 1.0) for one in [*bins, *bins[-1:]]])
            if heights.any():
                axes.fill_between(
                    edges,
                    bottoms,
                    bottoms + heights,
                    step="post",
                    linewidth=0,
                    color=COLOURS[name],
                    label=_WORDS.get(name, name),
                )
                bottoms += heights
    axes.set_yticks([y + 0.43 for y in range(len(rows))], [name for name, _ in rows])
    axes.set_xlim(0, seconds)
    axes.set_xlabel("seconds")
    axes.invert_yaxis()
    return _svg(figure, axes)


def scatter(series: Mapping[str, Sequence[tuple[float, float]]], across: str, up: str) -> str:
    """Points (x, y) above 0 on logarithmic axes, a series a colour; empty where there are none."""
    if not any(min(point) > 0 for points in series.values() for point in points):
        return ""
    figure, axes = _axes(4.0)
    for name, points in series.items():
        drawn = [point for point in points if min(point) > 0]
        if drawn:
            axes.scatter(
                *zip(*drawn, strict=True), s=14, alpha=0.6, color=COLOURS[name], label=_WORDS.get(name, name)
            )
    axes.set(xscale="log", yscale="log", xlabel=across, ylabel=up)
    axes.grid(alpha=0.3)
    return _svg(figure, axes)


def _axes(height: float) -> tuple[Any, Any]:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, height + 0.3), layout="constrained")
        return figure, figure.subplots()


def _svg(figure: Any, axes: Any) -> str:
    from matplotlib import rc_context

    handles, labels = axes.get_legend_handles_labels()
    legend = dict(zip(labels, handles, strict=True))
    figure.legend(legend.values(), legend.keys(), loc="outside upper left", ncols=5, frameon=False)
    text = StringIO()
    with rc_context(_STYLE):
        figure.savefig(text, format="svg", metadata={"Date": None})
    svg = text.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    return re.sub(r' (xmlns(:xlink)?|width|height)="[^"]*(pt|xlink|svg)"', "", svg, count=4)
