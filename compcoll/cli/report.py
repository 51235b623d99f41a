"""``compcoll report``."""

from __future__ import annotations

from pathlib import Path

import click

from compcoll.cli.output import check_folder


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for files. [default: DIR]"
)
def command(folder: Path, out: Path | None) -> None:
    """Say what a traced program did: tables here, report.html with plots, and perfetto.json for a time line.

    DIR is what `compcoll run --trace` or COMPCOLL_TRACE named. Files that are damaged or missing are named,
    and the rest is shown. perfetto.json opens in https://ui.perfetto.dev and in chrome://tracing.

    Why was a call not compressed? The table "Why calls were not compressed" has all reasons, by operation,
    those of most bytes first.
    """
    from compcoll.tracing import page, perfetto
    from compcoll.tracing.reader import read
    from compcoll.tracing.tables import tables_of

    into = out or folder
    check_folder(into, "the report", "--out names another folder")
    try:
        program = read(folder)
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    for note in program.notes:
        click.echo(f"# {note}")
    if not any(rank.calls for rank in program.ranks):
        raise click.ClickException(f"{folder} has a trace in which no call is")
    shown = tables_of(program)
    _print(shown)
    page.write(program, shown, into / "report.html")
    perfetto.write(program, into / "perfetto.json")
    click.echo(f"The page is {(into / 'report.html').resolve()}")
    click.echo(f"The time line is {(into / 'perfetto.json').resolve()}, for https://ui.perfetto.dev")


def _print(shown: list) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    # A narrow terminal wraps lines, where rich would cut numbers.
    console = Console(width=max(Console().width, 200), markup=False)
    for one in shown:
        table = Table(title=one.title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
        for i, heading in enumerate(one.headings):
            left = i < one.left
            table.add_column(heading, justify="left" if left else "right", overflow="fold", no_wrap=not left)
        for row in one.rows:
            table.add_row(*row)
        console.print(table)
