"""``compcoll tune``."""

from __future__ import annotations

from pathlib import Path

import click

from compcoll.cli.launch import is_launched, need_mpi, on_all, relaunch
from compcoll.cli.output import check_writable
from compcoll.cli.spec import ranks_option


@click.command()
@ranks_option(2, 2, "Ranks to start.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="File. [default: the user's cache]"
)
@click.option("--force", is_flag=True, help="Keep the profile of a busy machine, too.")
@click.option("--here", is_flag=True, help="Use the ranks that mpiexec started; never start others.")
@click.pass_context
def command(ctx: click.Context, ranks: int, out: Path | None, force: bool, here: bool) -> None:
    """Measure this machine for the model: links between and inside nodes, and the codecs.

    Takes a few seconds, and up to a minute on a slow network. Start it under mpiexec with one rank on each
    of at least two nodes to measure the network, best of as many as your jobs have; outside of mpiexec it
    starts ranks on this machine, and measures its memory alone: what an earlier profile has of the network
    stays. The profile is kept in the user's cache, under the hardware's fingerprint, where codec="auto" and
    when="pays" find it. A link that it lacks is measured when a communicator first needs it.

    Let nothing else run meanwhile: where repetitions of a measurement differ too much, or figures come out
    that no machine can have, the profile is not kept.
    """
    if not (here or is_launched()):
        words = [*(["--out", str(out)] if out else []), *(["--force"] if force else [])]
        ctx.exit(relaunch(ranks, ["tune", "--here", *words]))
    need_mpi()
    from mpi4py import MPI
    from rich.console import Console

    from compcoll.engine.measure import tune
    from compcoll.model.profile import cache_path, load, save

    world = MPI.COMM_WORLD
    path = out or cache_path()
    on_all(world, lambda: _check(path, world.size) if world.rank == 0 else None)
    console = Console(quiet=world.rank != 0)
    with console.status("measuring") as status:
        profile, noise = tune(world, lambda what: status.update(f"measuring {what}"))
    if world.rank == 0:
        both = profile.completed_by(load(lambda problem: None, path))
        keeps = noise.problem is None or (force and not noise.impossible)
        _show(console, profile, both, f"kept in {path}" if keeps else "not kept")
        if keeps:
            save(both, path)
    on_all(world, lambda: _refuse(noise, force) if world.rank == 0 else None)


def _refuse(noise, force: bool) -> None:
    """ClickException where the figures cannot be right, or a warning."""
    if noise.problem is None:
        return
    if noise.impossible:
        raise click.ClickException(f"{noise.problem}; the profile is not kept, run compcoll tune again")
    if not force:
        raise click.ClickException(
            f"{noise.problem}; the profile is not kept: run compcoll tune again while nothing else runs, or "
            "with --force"
        )
    click.echo(f"Warning: {noise.problem}", err=True)


def _check(path: Path, size: int) -> None:
    """ClickException where there is nothing to measure, or no place to keep it."""
    if size < 2:
        raise click.ClickException("one rank has no link to another; start tune with at least 2")
    check_writable(path, "the profile", "--out or COMPCOLL_PROFILE names another file")


def _show(console, new, profile, where: str) -> None:
    """Print a profile, whose links may have been measured before."""
    from rich.table import Table

    table = Table(title=f"profile {profile.name}, {where}")
    for heading in ("what", "latency or encode", "bandwidth or decode", "ratio"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for name, key in (("between nodes", "network"), ("inside a node", "node")):
        if key not in profile.measured:
            table.add_row(name, "not measured", "not measured", "")
            continue
        link, before = getattr(profile, key), "" if key in new.measured else ", before"
        table.add_row(name + before, f"{1e6 * link.latency:.2f} us", f"{link.bandwidth / 1e9:.3f} GB/s", "")
    for name, speed in profile.codecs.items():
        table.add_row(
            name, f"{speed.encode / 1e9:.2f} GB/s", f"{speed.decode / 1e9:.2f} GB/s", f"{speed.ratio:.2f}"
        )
    console.print(table)
