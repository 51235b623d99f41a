"""``compcoll demo``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from compcoll.cli.launch import benchmark, is_launched, relaunch
from compcoll.cli.spec import codecs_option


@click.command()
@click.option("--ranks", type=click.IntRange(2), default=4, show_default=True, help="Ranks to start.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), default="taylor_green.png", show_default=True,
    help="File for the figure.",
)  # fmt: skip
@codecs_option("Codec to compare with plain MPI, such as zfp:rate=16.")
@click.option("--points", type=click.IntRange(4), help="Points in each direction.")
@click.option("--steps", type=click.IntRange(1), help="Time steps.")
@click.option("--dtype", type=click.Choice(["float32", "float64"]), help="Precision of the flow.")
@click.option("--here", is_flag=True, help="Use the ranks that mpiexec started; never start others.")
@click.pass_context
def command(ctx, ranks, out, codecs, points, steps, dtype, here) -> None:
    """Simulate one flow with plain MPI and with several codecs.

    A pseudo-spectral solver for the Taylor-Green vortex, which knows nothing of compression, runs over
    plain MPI and over compcoll. Printed are bytes, times and what the codecs did to the flow; a figure
    shows it over time. Outside of mpiexec the command starts its ranks itself.
    """
    flow = {"n": points, "steps": steps, "dtype": dtype}
    flow = {key: value for key, value in flow.items() if value is not None}
    if not (here or is_launched()):
        ctx.exit(relaunch(ranks, _arguments(out, codecs, flow)))
    from mpi4py import MPI

    demo, _ = benchmark("demo"), benchmark("demo_figure")
    flow = replace(demo.Flow(), **flow)
    size = MPI.COMM_WORLD.Get_size()
    if size < 2:
        raise click.ClickException("one rank has nobody to talk to; start the demo with at least 2")
    if flow.n % size:
        raise click.BadParameter(f"{flow.n} cannot be cut into {size} equal slabs", param_hint="--points")
    demo.run(MPI.COMM_WORLD, codecs or demo.CODECS, flow, out=out)


def _arguments(out: Path, codecs: tuple[str, ...], flow: dict) -> list[str]:
    names = {"n": "--points", "steps": "--steps", "dtype": "--dtype"}
    options = [("--out", out), *(("--codecs", spec) for spec in codecs)]
    options += [(names[key], value) for key, value in flow.items()]
    return ["demo", "--here", *(str(word) for option in options for word in option)]
