"""Compare this library's codecs with each other and with others: ``python -m benchmarks.codecs``."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress

from .baselines import contestants, missing
from .data import FOLDER, real, synthetic, synthetic_grids
from .measure import measure
from .output import about, markdown, write_json

__all__ = ["main"]

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command(context_settings={"show_default": True})
@click.option("--data", "folder", default=FOLDER, type=click.Path(path_type=Path), help="Real data.")
@click.option("--values", default=1 << 20, type=click.IntRange(64), help="Values of a synthetic array.")
@click.option("--rate", "rates", multiple=True, type=float, help="Rates of ZFP; repeatable. [8, 16]")
@click.option("--repeats", default=4, type=click.IntRange(1), help="Turns of each codec, four calls each.")
@click.option("--quick", is_flag=True, help="Small arrays and one turn: does everything work?")
@click.option("--json", "json_path", type=_FILE, help="Write the measurements to a file.")
@click.option("--plot", "plot_path", type=_FILE, help="Draw ratio over speed into a file, PNG, PDF or SVG.")
def main(folder, values, rates, repeats, quick, json_path, plot_path) -> None:
    """Compare ratio, error and speed of codecs on one thread, all in one run.

    Speeds are of calls from Python, by processor time. Outputs are allocated beforehand if an interface takes
    them. Times of this library's codecs include the frame and its checksum.
    """
    notes = Console(stderr=True)
    if quick:
        values, repeats = min(values, 1 << 14), 1
    inputs = [*real(folder, 1 << 16 if quick else None), *synthetic(values), *synthetic_grids(values)]
    if not folder.is_dir():
        notes.print(f"no real data: there is no folder {folder}; --data names another one")
    if absent := missing():
        notes.print(f"not compared with {', '.join(absent)}: not installed (pip install 'compcoll[compare]')")
    info, rows = about(repeats), []
    with Progress(console=notes, transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("codecs", total=len(inputs) * repeats)
        for data in inputs:
            progress.update(task, description=data.label)
            chosen = contestants(data.array.ndim, rates or (8, 16))
            rows += measure(data, chosen, repeats, lambda: progress.advance(task))
    if json_path:
        write_json(rows, info, json_path)
    wrong = [f"{row.codec} on {row.data}" for row in rows if not row.sound]
    if wrong:
        raise click.ClickException(f"wrong results: {', '.join(wrong)}")
    click.echo(markdown(rows, info, len(inputs)), nl=False)
    if plot_path:
        from .plot import draw

        draw(rows, plot_path)


if __name__ == "__main__":
    main()
