"""``compcoll tune``."""

from __future__ import annotations

from pathlib import Path

import click

from compcoll.cli.launch import is_launched, on_all, relaunch


@click.command()
@click.option("--ranks", type=click.IntRange(1), default=2, show_default=True, help="Ranks to start.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="File. [default: the user's cache]"
)
@click.option("--here", is_flag=True, help="Use the ranks that mpiexec started; never start others.")
@click.pass_context
def command(ctx: click.Context, ranks: int, out: Path | None, here: bool) -> None:
    """Measure this machine for the model: links between and inside nodes, and the codecs.

    Takes a few seconds, and up to a minute on a slow network. Start it under mpiexec with one rank on each
    of at least two nodes to measure the network, best of as many as your jobs have; outside of mpiexec it
    starts ranks on this machine, and knows only its memory. The profile is kept in the user's cache, under
    the hardware's fingerprint, where codec="auto" and when="pays" find it.
    """
    if not (here or is_launched()):
        ctx.exit(relaunch(ranks, ["tune", "--here", *(["--out", str(out)] if out else [])]))
    from mpi4py import MPI
    from rich.console import Console

    from compcoll.engine.measure import tune
    from compcoll.model.profile import cache_path, save

    world = MPI.COMM_WORLD
    path = out or cache_path()
    on_all(world, lambda: _check_writable(path) if world.rank == 0 else None)
    console = Console(quiet=world.rank != 0)
    with console.status("measuring") as status:
        profile = tune(world, lambda what: status.update(f"measuring {what}"))
    if world.rank == 0:
        _show(console, profile, save(profile, path))


def _check_writable(path: Path) -> None:
    """ClickException where a file cannot be written; its folder is made, and what is in it left alone."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        there = path.exists()
        path.open("a").close()
        if not there:
            path.unlink()
    except OSError as error:
        raise click.ClickException(
            f"the profile cannot be written to {path}: {error.strerror}; --out or COMPCOLL_PROFILE names "
            "another file"
        ) from None


def _show(console, profile, path: Path) -> None:
    from rich.table import Table

    table = Table(title=f"profile {profile.name}, kept in {path}")
    for heading in ("what", "latency or encode", "bandwidth or decode", "ratio"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for name, link in (("between nodes", profile.network), ("inside a node", profile.node)):
        table.add_row(name, f"{1e6 * link.latency:.2f} us", f"{link.bandwidth / 1e9:.3f} GB/s", "")
    for name, speed in profile.codecs.items():
        table.add_row(
            name, f"{speed.encode / 1e9:.2f} GB/s", f"{speed.decode / 1e9:.2f} GB/s", f"{speed.ratio:.2f}"
        )
    console.print(table)
