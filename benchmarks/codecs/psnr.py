"""Bits a value over PSNR of lossy codecs, on fields and tensors: ``python -m benchmarks.codecs.psnr``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from compcoll.cli.choose import Goal, curve, ladders
from compcoll.cli.measure import Subject

from ..osu.output import as_json, environment
from .data import FOLDER, Data, real, synthetic, synthetic_grids

__all__ = ["CODECS", "points"]

#: Codecs by the names of their ladders; blocks of two or three dimensions have names of their own.
CODECS = ("zfp", "zfp, 2-d", "zfp, 3-d", "bfp", "szp", "int8", "fp8")


def arrays(folder: Path, values: int) -> Iterator[Data]:
    """A folder's real arrays of float32, or noise without them, and waves of float64 in 3 dimensions."""
    fields = [data for data in real(folder) if data.array.dtype == "f4"]
    yield from fields or [data for data in synthetic(values) if data.array.dtype == "f4"]
    yield list(synthetic_grids(values))[-1]


def points(data: Data) -> list[dict]:
    """A row for each codec: specs, PSNRs and bits a value, from coarse to fine."""
    subject = Subject(data.array)
    rows = []
    for ladder in ladders(data.array, subject.peak, Goal()):
        if ladder.label in CODECS:
            found = curve(ladder, subject)
            pairs = [{"spec": x.codec, "psnr": x.psnr, "bits": x.bits} for x in found]
            rows.append({"data": data.label, "codec": ladder.label, "points": pairs})
    return rows


@click.command(context_settings={"show_default": True})
@click.option("--data", "folder", default=FOLDER, type=click.Path(path_type=Path), help="Real data.")
@click.option("--values", default=1 << 20, type=click.IntRange(64), help="Values of a synthetic array.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the points to a file.")
def main(folder: Path, values: int, json_path: Path | None) -> None:
    """Measure bits a value over PSNR of each lossy codec, on whole arrays.

    PSNR is the range of the values over the root of the mean squared error, in dB.
    """
    rows = []
    for data in arrays(folder, values):
        rows += points(data)
    for row in rows:
        pairs = " ".join(f"{p['psnr']:.1f}:{p['bits']:.2f}" for p in row["points"])
        click.echo(f"{row['data']:28} {row['codec']:9} {pairs}")
    if json_path:
        json_path.write_text(as_json({**environment(), "rows": rows}))


if __name__ == "__main__":
    main()
