"""``compcoll codec``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from compcoll.cli.load import DType, Shape, load
from compcoll.cli.output import check_writable
from compcoll.cli.spec import codec_option


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--dtype", type=DType(), help="Element type of a raw file: f4, f8, f2, bf16, i4, c8, ...")
@click.option("--shape", type=Shape(), help="1 to 3 dimensions, slowest first, such as 41x128x128.")
@codec_option("Codec such as zfp:rate=8; by default all that take the dtype. Repeatable.", multiple=True)
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw a figure into this file.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--seconds", type=click.FloatRange(0, min_open=True), default=0.3, show_default=True,
    help="Time for each codec and direction.",
)  # fmt: skip
def command(file, dtype, shape, codec, plot, as_json, seconds) -> None:
    """Try codecs on an array in FILE, a .npy file or a raw one.

    Shows each codec's ratio, error and speed on one core. Blocks take the array's dimensions, as those of
    collectives do; sums and policies with ``shape = "flat"`` code values in a row, as a shape of one
    dimension shows.
    """
    from compcoll.cli.measure import default_specs, measure
    from compcoll.core import _cpu

    check_writable(plot, "the figure")
    array = load(file, dtype, shape)
    results = [measure(spec, array, seconds) for spec in codec or default_specs(array.dtype)]
    about = {
        "file": str(file), "dtype": str(array.dtype), "shape": list(array.shape),
        "nbytes": array.nbytes, "level": _cpu.level(),
    }  # fmt: skip
    if as_json:
        rows = [{k: None if v != v else v for k, v in asdict(r).items()} for r in results]
        click.echo(json.dumps({**about, "results": rows}, indent=2))
    else:
        _print(about, results)
    if plot is not None:
        _draw(about, results, plot)


def _title(about: dict) -> str:
    shape = " x ".join(map(str, about["shape"]))
    return f"{Path(about['file']).name}: {shape} {about['dtype']}, one core, {about['level']}"


def _print(about: dict, results: list) -> None:
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table

    console, table = Console(), Table(title=_title(about))
    table.add_column("codec", no_wrap=True)
    for name in ("ratio", "largest\nerror", "PSNR\ndB", "encode\nGB/s", "decode\nGB/s"):
        table.add_column(name, justify="right")
    for r in results:
        table.add_row(_name(r), *_figures(r))
    needed = Measurement.get(console, console.options.update(max_width=1000), table).maximum
    if needed <= console.width:
        console.print(table)
        return
    console.print(_title(about), highlight=False)
    for r in results:
        ratio, error, psnr, encode, decode = _figures(r)
        console.print(f"[bold]{_name(r)}[/bold]", highlight=False, soft_wrap=True)
        console.print(
            f"  {ratio} : 1, error {error}, PSNR {psnr} dB, encodes {encode}, decodes {decode} GB/s",
            highlight=False,
        )


def _name(r) -> str:
    """A codec's spec, and what it chose where that is another."""
    return r.codec if r.coded_as in (r.codec.partition(":")[0], r.codec) else f"{r.codec} -> {r.coded_as}"


def _figures(r) -> tuple[str, ...]:
    """Ratio, largest error, PSNR and the two speeds."""
    return (
        f"{r.ratio:.2f}", "0, exact" if r.lossless else f"{r.max_error:.2e}",
        "-" if r.psnr is None else f"{r.psnr:.1f}", f"{r.encode_gbs:.2f}", f"{r.decode_gbs:.2f}",
    )  # fmt: skip


def _draw(about: dict, results: list, path: Path) -> None:
    try:
        from compcoll.cli.figure import draw
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"--plot needs the package {error.name}; pip install 'compcoll[bench]' brings it"
        ) from None
    try:
        draw(results, _title(about), path)
    except (OSError, ValueError) as error:
        raise click.ClickException(f"the figure cannot be written: {error}") from None
