"""The figures of ``compcoll codec``."""

from __future__ import annotations

from itertools import cycle
from math import inf, isfinite
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from compcoll.cli.choose import Choice, Goal
from compcoll.cli.measure import Measurement

__all__ = ["draw", "draw_choices"]

_MARKERS = "os^vD<>pPX*hH8d"


def draw(results: list[Measurement], title: str, path: Path) -> None:
    """Draw ratio against speed, and quality against ratio, into a file; its suffix gives the format."""
    figure = Figure(figsize=(11, 5), layout="constrained")
    speed, quality = figure.subplots(1, 2)
    for i, r in enumerate(results):
        style = {
            "color": f"C{i % 10}",
            "marker": _MARKERS[i % len(_MARKERS)],
            "linestyle": "none",
            "markersize": 8,
        }
        # The line leads from the speed of encoding, drawn hollow, to that of decoding.
        speed.plot([r.encode_gbs, r.decode_gbs], [r.ratio, r.ratio], color=style["color"], linewidth=1)
        speed.plot([r.encode_gbs], [r.ratio], **style, markerfacecolor="white")
        speed.plot([r.decode_gbs], [r.ratio], **style)
        if isfinite(r.snr):
            quality.plot([r.ratio], [r.snr], **style)
        quality.plot([], [], label=f"{r.codec} (exact)" if r.lossless else r.codec, **style)
    speed.set(xlabel="GB/s of the array: hollow encode, filled decode", ylabel="ratio", xscale="log")
    speed.xaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 4, 6, 8)))
    speed.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    speed.xaxis.set_minor_locator(NullLocator())
    speed.set_ylim(bottom=0)
    quality.set(xlabel="ratio", ylabel="SNR (dB)")
    quality.set_title("lossy codecs", fontsize="medium")
    speed.set_title("all codecs", fontsize="medium")
    quality.set_xlim(left=0)
    for axes in (speed, quality):
        axes.grid(alpha=0.3)
    figure.legend(loc="outside right center", frameon=False)
    figure.suptitle(title)
    figure.savefig(path, dpi=120)


def draw_choices(
    curves: dict[str, list[Measurement]], met: list[Choice], goal: Goal, title: str, path: Path
) -> None:
    """Draw largest error and SNR against bits: curves of codecs, a goal, and the cheapest that keeps it."""
    figure = Figure(figsize=(11, 5), layout="constrained")
    error, snr = figure.subplots(1, 2)
    markers = cycle(_MARKERS)
    for i, (label, found) in enumerate(x for x in curves.items() if x[1]):
        style = {"color": f"C{i % 10}", "marker": next(markers), "markersize": 5, "linewidth": 1.5}
        bits = [r.bits for r in found]
        error.plot(bits, [r.max_error for r in found], label=label, **style)
        snr.plot(bits, [r.snr for r in found], **style)
    for axes, limit in ((error, goal.error), (snr, goal.snr)):
        if isfinite(limit):
            axes.axhline(limit, color="black", linestyle="--", linewidth=1)
        exact = min((c.found.bits for c in met if c.found.lossless), default=inf)
        if isfinite(exact):
            axes.axvline(exact, color="grey", linestyle=":")
        axes.grid(alpha=0.3)
        axes.set(xlabel="bits a value", xlim=(0, None))
    if isfinite(exact):
        error.plot([], [], color="grey", linestyle=":", label="lossless")
    if isfinite(goal.error) or isfinite(goal.snr):
        error.plot([], [], color="black", linestyle="--", label="limit")
    for choice in met[:1]:
        best = choice.found
        star = {"color": "black", "marker": "*", "markersize": 15, "linestyle": "none", "zorder": 5}
        if not best.lossless:
            error.plot([best.bits], [best.max_error], label=best.codec, **star)
            snr.plot([best.bits], [best.snr], **star)
    error.set(ylabel="largest absolute error", yscale="log")
    snr.set(ylabel="SNR (dB)")
    figure.legend(loc="outside right center", frameon=False)
    figure.suptitle(title)
    figure.savefig(path, dpi=120)
