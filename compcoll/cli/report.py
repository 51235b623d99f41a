"""``compcoll report``."""

from __future__ import annotations

from pathlib import Path

import click

from compcoll.cli.output import check_folder


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--network", help="Predict for a fabric by name; `compcoll explain` has a list of them.")
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for files. [default: DIR]"
)
def command(folder: Path, network: str | None, out: Path | None) -> None:
    """Say what a traced program did: tables here, report.html with plots, and perfetto.json for a time line.

    DIR is what `compcoll run --trace` or COMPCOLL_TRACE named. What plain MPI would have taken is predicted
    by the model, from the profile that `compcoll tune` left; without one it is left out. Files that are
    damaged or missing are named, and the rest is shown. perfetto.json opens in https://ui.perfetto.dev and in
    chrome://tracing.
    """
    from compcoll.model.profile import FABRICS, UNKNOWN, load
    from compcoll.tracing import page, perfetto
    from compcoll.tracing.cells import tables_of
    from compcoll.tracing.predicted import Predictor
    from compcoll.tracing.reader import read

    if network and network not in FABRICS:
        raise click.BadParameter(f"{network!r} is not one of {', '.join(FABRICS)}", param_hint="--network")
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
    machine = load(lambda problem: click.echo(f"# {problem}"))
    source = f"the profile {machine.name}" if machine is not None else "careful figures of no machine"
    link = "node" if program.on_one_node else "network"
    if network and program.on_one_node:
        click.echo("# the program ran on one node: --network changes nothing")
    elif network:
        link, machine = "", (machine or UNKNOWN).with_network(FABRICS[network], network)
        source += f" with the network {network}"
    if machine is None:
        click.echo("# no profile of this machine (compcoll tune makes one): plain MPI is not predicted")
    elif link and link not in machine.measured:
        where = "inside a node" if link == "node" else "between nodes"
        click.echo(
            f"# the profile has no link {where} (compcoll tune measures it): plain MPI is not predicted"
        )
        machine = None
    predictor = Predictor(program, machine)
    shown = tables_of(program, predictor)
    _show(shown)
    page.write(program, shown, predictor, source, into / "report.html")
    perfetto.write(program, into / "perfetto.json")
    click.echo(f"The page is {(into / 'report.html').resolve()}")
    click.echo(f"The time line is {(into / 'perfetto.json').resolve()}, for https://ui.perfetto.dev")


def _show(shown: list) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    for one in shown:
        table = Table(title=one.title, title_justify="left")
        for i, heading in enumerate(one.headings):
            left = i < one.left
            table.add_column(heading, justify="left" if left else "right", overflow="fold", no_wrap=not left)
        for row in one.rows:
            table.add_row(*row)
        console.print(table)
