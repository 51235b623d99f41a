"""Small drawings for a page: SVG as text, without any library."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from math import ceil, floor, log10

__all__ = ["COLOURS", "bars", "scatter", "timeline"]

#: Of what is drawn: distinct to eyes that see red and green alike.
COLOURS = {
    "encode": "#0072b2", "decode": "#009e73", "wait": "#e69f00", "other": "#b8b8b8", "MPI": "#cc79a7",
    "uncompressed": "#b8b8b8", "wire": "#0072b2", "accelerated": "#0072b2", "plain": "#d55e00",
}  # fmt: skip
_WIDTH, _LEFT, _ROW = 1000, 150, 26


def bars(
    rows: Sequence[tuple[str, Sequence[tuple[str, float]]]], words: Sequence[str]
) -> str:  # fmt: skip
    """Horizontal bars, one a row, each of pieces (colour, value) side by side, and words behind them."""
    most = max((sum(value for _, value in pieces) for _, pieces in rows), default=0.0) or 1.0
    room, parts = _WIDTH - _LEFT - 130, []
    for i, ((name, pieces), text) in enumerate(zip(rows, words, strict=True)):
        x, y = float(_LEFT), 4 + i * _ROW
        parts.append(_text(_LEFT - 8, y + 14, name, "end"))
        for colour, value in pieces:
            width = room * value / most
            parts.append(_box(x, y, width, _ROW - 8, COLOURS[colour], f"{name}: {colour}"))
            x += width
        parts.append(_text(x + 6, y + 14, text))
    return _svg(_WIDTH, len(rows) * _ROW + 8, parts)


def timeline(
    rows: Sequence[tuple[str, Sequence[Sequence[tuple[str, float]]]]], seconds: float
) -> str:  # fmt: skip
    """A row a rank: for each bin of time the parts (colour, fraction of the bin), stacked."""
    height, room, parts = 34, _WIDTH - _LEFT - 20, []
    for i, (name, bins) in enumerate(rows):
        y = 4 + i * (height + 8)
        parts.append(_text(_LEFT - 8, y + height / 2 + 5, name, "end"))
        parts.append(_box(_LEFT, y, room, height, "#f2f2f2"))
        width = room / max(len(bins), 1)
        for j, pieces in enumerate(bins):
            top = y + float(height)
            for colour, fraction in pieces:
                part = height * min(fraction, 1.0)
                if part > 0:
                    top = max(top - part, y)
                    parts.append(_box(_LEFT + j * width, top, width + 0.2, part, COLOURS[colour]))
    bottom = 4 + len(rows) * (height + 8)
    for tick in _ticks(seconds):
        x = _LEFT + room * tick / seconds
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="4" y2="{bottom}" stroke="#8884"/>')
        parts.append(_text(x, bottom + 14, f"{tick:g} s", "middle"))
    return _svg(_WIDTH, bottom + 22, parts)


def scatter(series: Sequence[tuple[str, Sequence[tuple[float, float]]]], across: str, up: str) -> str:
    """Points (x, y) above 0 on logarithmic axes, a series a colour."""
    points = [point for _, some in series for point in some if min(point) > 0]
    if not points:
        return ""
    height, room, parts = 380, _WIDTH - _LEFT - 20, []
    (x0, x1), (y0, y1) = (_decades(value[axis] for value in points) for axis in (0, 1))

    def place(point: tuple[float, float]) -> tuple[float, float]:
        return (
            _LEFT + room * (log10(point[0]) - x0) / (x1 - x0),
            10 + (height - 60) * (y1 - log10(point[1])) / (y1 - y0),
        )

    for decade in range(x0, x1 + 1):
        x, _ = place((10.0**decade, 10.0**y0))
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="10" y2="{height - 50}" stroke="#8883"/>')
        parts.append(_text(x, height - 32, _unit(10.0**decade, "B"), "middle"))
    for decade in range(y0, y1 + 1):
        _, y = place((10.0**x0, 10.0**decade))
        parts.append(f'<line x1="{_LEFT}" x2="{_LEFT + room}" y1="{y:.1f}" y2="{y:.1f}" stroke="#8883"/>')
        parts.append(_text(_LEFT - 8, y + 4, _unit(10.0**decade, "s"), "end"))
    for colour, some in series:
        for point in some:
            if min(point) > 0:
                x, y = place(point)
                parts.append(
                    f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{COLOURS[colour]}" opacity=".6"/>'
                )
    parts.append(_text(_LEFT + room / 2, height - 10, across, "middle"))
    parts.append(
        f'<g transform="translate(22 {height / 2 - 20}) rotate(-90)">{_text(0, 0, up, "middle")}</g>'
    )
    return _svg(_WIDTH, height, parts)


def _decades(values: Iterable[float]) -> tuple[int, int]:
    exponents = [log10(value) for value in values]
    low, high = floor(min(exponents)), ceil(max(exponents))
    return low, max(high, low + 1)


def _ticks(end: float) -> list[float]:
    """Round numbers from 0 to the end, some eight of them."""
    if end <= 0:
        return []
    step = 10.0 ** floor(log10(end / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if end / (step * factor) <= 10)
    return [round(i * step, 12) for i in range(int(end / step) + 1)]


def _unit(value: float, unit: str) -> str:
    """A power of ten with a prefix."""
    prefixes = {-9: "n", -6: "µ", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T"}
    exponent = round(log10(value))
    base = min(max(3 * floor(exponent / 3), -9), 12)
    return f"{10.0 ** (exponent - base):g} {prefixes[base]}{unit}"


def _box(x: float, y: float, width: float, height: float, colour: str, title: str = "") -> str:
    about = f"<title>{escape(title)}</title>" if title else ""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.2f}" height="{height:.1f}" fill="{colour}">'
        f"{about}</rect>"
    )


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(width: int, height: float, parts: list[str]) -> str:
    return f'<svg viewBox="0 0 {width} {height:.0f}" role="img">{"".join(parts)}</svg>'
