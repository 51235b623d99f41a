"""The figure of ``compcoll codec``: ratio against speed, and quality against ratio."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

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
    speed.set(
        xlabel="GB/s of the array: hollow encode, filled decode", ylabel="ratio", xscale="log", yscale="log"
    )
    for axis in (speed.xaxis, speed.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(FuncFormatter(lambda value, _: ""))
    quality.set(xlabel="ratio", ylabel="PSNR (dB)", title="lossy codecs")
    quality.xaxis.set_major_locator(MaxNLocator(8))
    for axes in (speed, quality):
        axes.grid(alpha=0.3, which="both")
    figure.legend(loc="outside right center", frameon=False)
    figure.suptitle(title)
    figure.savefig(path, dpi=120)
