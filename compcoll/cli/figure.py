"""The figures of ``compcoll codec``: ratio over speed, and bits a value over PSNR."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from compcoll.cli.choose import DECIBELS, Goal
from compcoll.cli.measure import Measurement

__all__ = ["check_format", "draw", "draw_bits"]

_MARKERS = "os^vD<>pPX*hH8d"
#: Codecs have the same colours in all figures; lossless ones and those of other packages are grey.
_COLOURS = {"zfp": "C0", "bfp": "C1", "szp": "C2", "int8": "C3", "fp8": "C4", "int4": "C5"}


def check_format(path: Path) -> str:
    """The reason why a figure cannot have this suffix; empty if it can."""
    known = Figure().canvas.get_supported_filetypes()
    suffix = path.suffix.removeprefix(".").lower()
    return "" if suffix in known or not suffix else f"{path.suffix} is none of {', '.join(sorted(known))}"


def draw(
    found: list[Measurement], curves: dict[str, list[Measurement]], goal: Goal, title: str, path: Path
) -> None:
    """Draw ratio against speed, and bits against PSNR, into a file; its suffix gives the format.

    Parameters
    ----------
    found : list of Measurement
        A point each.
    curves : dict of str to list of Measurement
        Lossy specs of a codec from coarse to fine, by a label.
    goal : Goal
        Its SNR is drawn as a line.
    """
    figure = Figure(figsize=(11, 5), layout="constrained")
    speed, bits = figure.subplots(1, 2)
    for i, x in enumerate(found):
        style = {"color": _colour(x.codec), "marker": _MARKERS[i % len(_MARKERS)], "linestyle": "none"}
        slower = min(x.encode_gbs, x.decode_gbs)
        speed.plot([slower], [x.ratio], label=f"{x.codec} (exact)" if x.lossless else x.codec, **style)
        if x.psnr is not None and DECIBELS[0] <= x.psnr <= DECIBELS[1]:
            bits.plot([x.psnr], [x.bits], **style)
    limits = [goal.snr + x.psnr - x.snr for x in found if x.psnr is not None]  # the same for all specs
    if limits and isfinite(goal.snr):
        bits.axvline(limits[0], color="black", linestyle="--", linewidth=1, label="limit")
    speed.set(xlabel="GB/s of the array, the slower of encode and decode", ylabel="ratio")
    speed.set(xlim=(0, None), ylim=(0, None))
    speed.grid(alpha=0.3)
    pairs = {k: [(x.psnr, x.bits) for x in curve if x.psnr is not None] for k, curve in curves.items()}
    draw_bits(bits, pairs)
    figure.legend(loc="outside right center", frameon=False)
    figure.suptitle(title)
    figure.savefig(path, dpi=120)


def draw_bits(axes: Axes, curves: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    """Draw bits a value over PSNR between `DECIBELS`, a line or a point for each codec, and its name beside.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
    curves : dict of str to sequence of (float, float)
        PSNR and bits of a codec's specs, from coarse to fine, by the codec's name. Names with a comma have
        dashed lines, such as ``zfp, 3-d``.
    """
    ends = []
    for label, points in curves.items():
        psnrs, bits = np.array(points).reshape(-1, 2).T
        low, high = max(DECIBELS[0], psnrs.min(initial=1e9)), min(DECIBELS[1], psnrs.max(initial=-1e9))
        if low > high:
            continue
        shown = [low, *psnrs[(psnrs > low) & (psnrs < high)], high]
        heights = np.interp(shown, psnrs, bits)
        style, marker = "--" if "," in label else "-", "" if low < high else "o"
        axes.plot(shown, heights, linestyle=style, marker=marker, markersize=5, color=_colour(label))
        ends.append((heights[-1], high, label))
    axes.set(xlim=DECIBELS, ylim=(0, None), xlabel="PSNR (dB)", ylabel="bits a value")
    axes.grid(alpha=0.3)
    gap, above = 0.055 * axes.get_ylim()[1], -np.inf
    text: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": "small"}
    for height, psnr, label in sorted(ends):
        if psnr > DECIBELS[1] - 1:
            above = max(height, above + gap)
            axes.annotate(
                label, (DECIBELS[1], above), (4, 0), color=_colour(label), annotation_clip=False, **text
            )
        else:
            side = "right" if psnr > DECIBELS[0] + 5 else "left"
            axes.annotate(label, (psnr, height), (0, 8), color=_colour(label), ha=side, **text)


def _colour(label: str) -> str:
    """The colour of a codec, by its name or spec."""
    return _COLOURS.get(label.replace(":", ",").partition(",")[0], "0.4")
