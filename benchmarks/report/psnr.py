"""Figure and table of bits a value over PSNR, from ``python -m benchmarks.codecs.psnr``."""

from __future__ import annotations

from pathlib import Path

import numpy as np

__all__ = ["figure", "table"]

DECIBELS = (60, 75, 91)
COLUMNS = {
    "`zfp`, values in a row": ("zfp",),
    "`zfp`, shaped": ("zfp, 2-d", "zfp, 3-d"),
    "`bfp`": ("bfp",),
    "`szp`": ("szp",),
}


def table(runs: list[dict]) -> list[str]:
    """Lines of a table of bits a value, interpolated between specs, and of one for codecs of one size."""
    rows = {(row["data"], row["codec"]): row["points"] for row in runs[0]["rows"]}
    lines = [
        f"| data | PSNR, dB | {' | '.join(COLUMNS)} |",
        "| --- | ---: |" + " ---: |" * len(COLUMNS),
    ]
    names = dict.fromkeys(data for data, _ in rows)
    for data in names:
        for psnr in DECIBELS:
            found = [_bits(rows, data, codecs, psnr) for codecs in COLUMNS.values()]
            least = min(bits for bits in found if bits is not None)
            cells = ["-" if bits is None else f"{bits:.1f}" for bits in found]
            bold = [f"**{cell}**" if cell == f"{least:.1f}" else cell for cell in cells]
            lines.append(f"| {data} | {psnr} | {' | '.join(bold)} |")
    lines += ["", f"| PSNR, dB | {' | '.join(names)} |", "| --- |" + " ---: |" * len(names)]
    for codec in ("int8", "fp8"):
        own = [rows[data, codec][0] for data in names]
        least, most = (f"{extreme(point['bits'] for point in own):.1f}" for extreme in (min, max))
        cells = (f"{point['psnr']:.1f}" for point in own)
        lines.append(f"| `{codec}`, {least} to {most} bits | {' | '.join(cells)} |")
    return lines


def _bits(rows: dict, data: str, codecs: tuple[str, ...], psnr: float) -> float | None:
    points = next((rows[data, codec] for codec in codecs if (data, codec) in rows), [])
    psnrs = [point["psnr"] for point in points]
    if not points or not psnrs[0] <= psnr <= psnrs[-1]:
        return None
    return float(np.interp(psnr, psnrs, [point["bits"] for point in points]))


def figure(runs: list[dict], path: Path) -> None:
    """A panel for each array."""
    from matplotlib.figure import Figure

    from compcoll.cli.figure import draw_bits

    rows = runs[0]["rows"]
    names = list(dict.fromkeys(row["data"] for row in rows))
    drawing = Figure(figsize=(11.5, 3.6 * -(-len(names) // 3)), layout="constrained")
    panels = drawing.subplots(-(-len(names) // 3), 3, squeeze=False).flat
    for panel, name in zip(panels, names, strict=False):
        own = [row for row in rows if row["data"] == name]
        draw_bits(panel, {row["codec"]: [(p["psnr"], p["bits"]) for p in row["points"]] for row in own})
        panel.set_title(name)
    for panel in list(panels):
        panel.axis("off")
    drawing.savefig(path, dpi=110)
