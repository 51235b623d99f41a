"""``compcoll report``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.formatting import wrap_text

from compcoll.cli.output import check_folder, wide_console

if TYPE_CHECKING:
    from compcoll.tracing import tables

#: Width of text that is easy to read.
_WIDTH = 100
#: Least width, and headings, of columns whose cells may continue on another line.
_FOLDED = 20
_LONG = ("place", "communicator", "host", "way")


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for files. [default: DIR]"
)
def command(folder: Path, out: Path | None) -> None:
    """Report on a traced program: print tables, write plots to report.html and a time line to perfetto.json.

    DIR is the folder of `compcoll run --trace` or COMPCOLL_TRACE. Damaged or missing files are named, and the
    rest is shown. perfetto.json opens in https://ui.perfetto.dev and in chrome://tracing.

    A conclusion comes first. The list "Compressed in vain" has calls whose coding did not pay, and the rule
    of a policy that leaves them to MPI. The list "Why calls were not compressed" has reasons by operation,
    sorted by bytes. The end says what a codec would have gained, and the rule of a policy to try.
    """
    from compcoll.tracing import findings, page, perfetto, prediction
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
        raise click.ClickException(f"the trace in {folder} has no calls")
    shown = tables_of(program)
    _print_list("", findings.conclusion(program))
    _print_list("The run", [f"{name}: {text}" for name, text in findings.facts_of(program)])
    _print_list(findings.VAIN, findings.in_vain(program))
    _print_list(findings.REASONS, findings.reasons_of(program))
    click.echo()
    _print(shown)
    _print_list("What a codec would have gained", prediction.advice(program))
    click.echo()
    page.write(program, shown, into / "report.html")
    perfetto.write(program, into / "perfetto.json")
    click.echo(f"The page is {(into / 'report.html').resolve()}")
    click.echo(f"The time line is {(into / 'perfetto.json').resolve()}, for https://ui.perfetto.dev")


def _print_list(title: str, lines: list[str]) -> None:
    """Print a list, unless it is empty; lines without a title are sentences."""
    if lines and title:
        click.echo(f"\n{title}")
    for line in lines:
        begin = ("- ", "  ") if title else ("", "")
        click.echo(wrap_text(line, min(wide_console().width, _WIDTH), *begin))


def _print(shown: list[tables.Table]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.cells import cell_len
    from rich.markup import escape
    from rich.table import Table

    console = wide_console()
    width = console.width
    for one in shown:
        table = Table(
            title=one.title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
        )
        least = 0
        for i, cells in enumerate(zip(one.headings, *one.rows, strict=True)):
            longest = max(map(cell_len, cells))
            needed = min(longest, _FOLDED) if cells[0] in _LONG else longest
            table.add_column(
                cells[0],
                justify="left" if i < one.left else "right",
                overflow="fold",
                min_width=needed,
            )
            least += needed + 2
        for row in one.rows:
            table.add_row(*map(escape, row))
        # A narrow terminal wraps the lines; rich would cut numbers off.
        console.width = max(width, least)
        console.print(table)
