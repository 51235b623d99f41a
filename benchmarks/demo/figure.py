"""The picture of the demo: energy and dissipation over time, their errors, bytes on the wire, and times."""

from __future__ import annotations

from pathlib import Path
from textwrap import wrap

import numpy as np
from matplotlib.figure import Figure

__all__ = ["draw"]

#: Colours that are distinct for colour-blind readers too; the plain run is a broad line behind the others.
_PLAIN = {"color": "0.75", "linewidth": 5}
_STYLES = [
    {"color": "#0072B2", "linewidth": 1.6, "linestyle": "-"},
    {"color": "#009E73", "linewidth": 1.6, "linestyle": "--"},
    {"color": "#D55E00", "linewidth": 1.6, "linestyle": "-."},
    {"color": "#CC79A7", "linewidth": 1.6, "linestyle": ":"},
    {"color": "#000000", "linewidth": 1.6, "linestyle": (0, (1, 2))},
]
TIME = "time $t\\,U/L$ (nondimensional)"


def draw(runs, path: str | Path, timings=()) -> None:
    """Draw the runs of `benchmarks.demo.program.simulate` into a file, in the format of its suffix.

    Parameters
    ----------
    runs : list of benchmarks.demo.program.Run
    path : path
    timings : sequence of (str, list of benchmarks.demo.program.Run or str)
        Up to two places where the flow was simulated, each with its runs or the reason why it has none.
    """
    timings = timings or [("these ranks", runs)]
    figure = Figure(figsize=(18, 7), layout="constrained")
    axes = figure.subplots(2, 4)
    styles = [_PLAIN, *(_STYLES[i % len(_STYLES)] for i in range(len(runs) - 1))]
    _curves(axes[0, 0], runs, styles, "energy", "kinetic energy $E/U^2$")
    _curves(axes[0, 1], runs, styles, "dissipation", "dissipation $\\varepsilon L/U^3$")
    _bytes(axes[0, 2], runs, styles)
    plain = runs[0]
    _errors(
        axes[1, 0], runs, styles, lambda r: r.drift("energy", plain), "|relative drift of kinetic energy|"
    )
    _errors(
        axes[1, 1], runs, styles, lambda r: r.drift("dissipation", plain), "|relative drift of dissipation|"
    )
    _errors(axes[1, 2], runs, styles, lambda r: r.error, "velocity error / largest velocity")
    for i in range(2):
        if i < len(timings):
            _times(axes[i, 3], *timings[i], styles)
        else:
            axes[i, 3].set_axis_off()
    figure.suptitle("Taylor-Green vortex with compressed transposes")
    figure.savefig(path, dpi=110)


def _curves(axes, runs, styles, quantity: str, label: str) -> None:
    for r, style in zip(runs, styles, strict=True):
        axes.plot(r.time, getattr(r, quantity), label=r.label, **style)
    axes.set(xlabel=TIME, ylabel=label)
    axes.grid(alpha=0.3)
    axes.legend()


def _errors(axes, runs, styles, errors, label: str) -> None:
    """Draw errors on a logarithmic axis; runs without any error are listed, because it cannot show them."""
    for r, style in zip(runs[1:], styles[1:], strict=True):
        values = np.abs(errors(r))
        if values.any():
            axes.semilogy(r.time, np.where(values > 0, values, np.nan), label=r.label, **style)
        else:
            axes.plot([], [], label=f"{r.label}: exactly 0", **style)
    axes.set(xlabel=TIME, ylabel=label)
    axes.grid(alpha=0.3)
    low, high = axes.get_ylim()
    if axes.get_yscale() == "log":  # room for the legend above the curves
        axes.set_ylim(low, high * (high / low) ** (0.12 * len(runs)))
    axes.legend(loc="upper right")


def _bytes(axes, runs, styles) -> None:
    megabytes = [r.wire_nbytes / 1e6 for r in runs]
    bars = axes.barh([r.label for r in runs], megabytes, color=[s["color"] for s in styles], height=0.6)
    axes.bar_label(bars, [f"{r.ratio:.2f} : 1" for r in runs], padding=4)
    axes.set(xlabel="sent in all steps (MB)", title="bytes and ratio", xlim=(0, 1.3 * max(megabytes) or 1))
    _finish_bars(axes)


def _times(axes, where: str, runs, styles) -> None:
    """Draw the times of the steps, with the part inside Alltoall in full colour."""
    axes.set_title(where)
    if isinstance(runs, str):
        axes.set_axis_off()
        axes.text(0.5, 0.5, "\n".join(wrap(runs, 36)), ha="center", va="center", transform=axes.transAxes)
        return
    labels, colors = [r.label for r in runs], [s["color"] for s in styles]
    plain = runs[0]
    inside = [r.exchange or 0.0 for r in runs]
    rest = [r.seconds - part for r, part in zip(runs, inside, strict=True)]
    axes.barh(labels, inside, color=colors, height=0.6)
    bars = axes.barh(labels, rest, left=inside, color=colors, alpha=0.25, hatch="//", height=0.6)
    texts = [
        f"{part:.1f} + {other:.1f} s" if part else f"{other:.1f} s"
        for part, other in zip(inside, rest, strict=True)
    ]
    texts[1:] = [
        f"{text}, {r.seconds / plain.seconds - 1:+.0%}" for r, text in zip(runs[1:], texts[1:], strict=True)
    ]
    axes.bar_label(bars, texts, padding=4)
    what = "in Alltoall + elsewhere" if plain.exchange else "of ranks that share cores"
    if plain.link is not None:
        what += " (line: the link alone)"
        for color, width in (("white", 4), ("black", 1.5)):
            axes.plot([r.link for r in runs], labels, "|", color=color, markersize=17, markeredgewidth=width)
    axes.set(xlabel=f"seconds {what}", xlim=(0, 1.6 * max(r.seconds for r in runs)))
    _finish_bars(axes)


def _finish_bars(axes) -> None:
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
