"""The figure of ``compcoll codec``: ratio against speed, and quality against ratio."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from compcoll.cli.measure import Measurement

__all__ = ["draw"]

_MARKERS = "os^vD<>pPX*hH8d"


def draw(results: list[Measurement], title: str, path: Path) -> None:
    """Draw measurements of one array into a file; its suffix gives the format."""
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
        if r.psnr is not None:
            quality.plot([r.ratio], [r.psnr], **style)
        quality.plot([], [], label=f"{r.codec} (exact)" if r.lossless else r.codec, **style)
    speed.set(xlabel="GB/s of the array: hollow encode, filled decode", ylabel="ratio", xscale="log")
    speed.xaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 4, 6, 8)))
    speed.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    speed.xaxis.set_minor_locator(NullLocator())
    speed.set_ylim(bottom=0)
    quality.set(xlabel="ratio", ylabel="PSNR (dB)")
    quality.set_title("lossy codecs", fontsize="medium")
    speed.set_title("all codecs", fontsize="medium")
    quality.set_xlim(left=0)
    for axes in (speed, quality):
        axes.grid(alpha=0.3)
    figure.legend(loc="outside right center", frameon=False)
    figure.suptitle(title)
    figure.savefig(path, dpi=120)
