"""The figure of ``compcoll codec``."""

from __future__ import annotations

from math import isfinite
from pathlib import Path

from matplotlib.figure import Figure

from compcoll.cli.choose import Goal
from compcoll.cli.measure import Measurement

__all__ = ["draw"]

_MARKERS = "os^vD<>pPX*hH8d"


def check_format(path: Path) -> str:
    """The reason why a figure cannot have this suffix; empty if it can."""
    known = Figure().canvas.get_supported_filetypes()
    suffix = path.suffix.removeprefix(".").lower()
    return "" if suffix in known or not suffix else f"{path.suffix} is none of {', '.join(sorted(known))}"


def draw(
    found: list[Measurement], curves: dict[str, list[Measurement]], goal: Goal, title: str, path: Path
) -> None:
    """Draw ratio against speed, and error against bits, into a file; its suffix gives the format.

    Parameters
    ----------
    found : list of Measurement
        A point each.
    curves : dict of str to list of Measurement
        Lossy specs of a codec from coarse to fine, by a label.
    goal : Goal
        A limit of the error, drawn as a line; errors are SNRs if the goal has no limit of the largest error.
    """
    figure = Figure(figsize=(11, 5), layout="constrained")
    speed, error = figure.subplots(1, 2)
    name, limit = ("max_error", goal.error) if isfinite(goal.error) else ("snr", goal.snr)
    for i, x in enumerate(found):
        style = {"color": f"C{i % 10}", "marker": _MARKERS[i % len(_MARKERS)], "linestyle": "none"}
        slower = min(x.encode_gbs, x.decode_gbs)
        speed.plot([slower], [x.ratio], label=f"{x.codec} (exact)" if x.lossless else x.codec, **style)
        if not x.lossless:
            error.plot([x.bits], [getattr(x, name)], **style)
    for label, points in curves.items():
        errors = [getattr(x, name) for x in points]
        error.plot([x.bits for x in points], errors, color="0.5", marker=".", linewidth=1, zorder=1)
        for x in points[-1:]:
            error.annotate(label, (x.bits, errors[-1]), (3, 3), textcoords="offset points", fontsize="small")
    if isfinite(limit):
        error.axhline(limit, color="black", linestyle="--", linewidth=1, label="limit")
    speed.set(xlabel="GB/s of the array, the slower of encode and decode", ylabel="ratio")
    speed.set(xlim=(0, None), ylim=(0, None))
    error.set(xlabel="bits a value", xlim=(0, None), ylabel="SNR (dB)")
    if name == "max_error":
        error.set(ylabel="largest absolute error", yscale="log")
    for axes in (speed, error):
        axes.grid(alpha=0.3)
    figure.legend(loc="outside right center", frameon=False)
    figure.suptitle(title)
    figure.savefig(path, dpi=120)
