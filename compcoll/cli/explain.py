"""``compcoll explain``."""

from __future__ import annotations

from pathlib import Path

import click

from compcoll.core.sizes import nbytes_of


@click.command()
@click.argument("op", metavar="OP")
@click.argument("nbytes", metavar="NBYTES")
@click.option("-n", "--ranks", type=click.IntRange(2), default=2, show_default=True, help="Number of ranks.")
@click.option("--codec", "spec", default="lossless", show_default=True, help="Codec.")
@click.option("--dtype", default="float32", show_default=True, help="NumPy type of the values.")
@click.option("--network", help="A fabric by name in place of the measured network; `list` shows them.")
@click.option("--ranks-per-node", type=click.IntRange(1), default=1, show_default=True)
@click.option("--workers", type=click.IntRange(0), default=0, show_default=True, help="Idle cores of a rank.")
@click.option("--schedule", is_flag=True, help="Print what a rank does, and when in the prediction.")
@click.option("--rank", type=click.IntRange(0), default=0, show_default=True, help="The rank of --schedule.")
@click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw the time line into a file."
)
def command(
    op, nbytes, ranks, spec, dtype, network, ranks_per_node, workers, schedule, rank, plot
) -> None:  # fmt: skip
    """Say what codec="auto" or when="pays" would do with a call, and why.

    OP is a method such as Alltoall, NBYTES the size of one message, such as 4M. The times of all
    alternatives are predicted from the profile that `compcoll tune` left.
    """
    import numpy as np

    from compcoll import codec
    from compcoll.core import dtypes
    from compcoll.model.advisor import advise, expected_speed
    from compcoll.model.predict import Call
    from compcoll.model.profile import FABRICS, UNKNOWN, load
    from compcoll.operations import ALGORITHMS

    if network == "list":
        for name, link in FABRICS.items():
            click.echo(f"{name:8s} {1e6 * link.latency:6.1f} us {link.bandwidth / 1e9:8.2f} GB/s")
        return
    size = _size(nbytes)
    names = [name for name in ALGORITHMS if name not in ("Send", "Recv", "Sendrecv")]
    if op not in names:
        raise click.BadParameter(f"{op!r} is not one of {', '.join(names)}", param_hint="OP")
    if network and network not in FABRICS:
        raise click.BadParameter(f"{network!r} is not one of {', '.join(FABRICS)}", param_hint="--network")
    machine = load(lambda problem: click.echo(f"# {problem}", err=True))
    if machine is None:
        click.echo("# no profile of this machine yet (compcoll tune makes one): careful figures instead")
        machine = UNKNOWN
    if network:
        machine = machine.with_network(FABRICS[network], network)
    try:
        chosen = codec(spec)
        kind = dtypes.BFLOAT16 if dtype == "bfloat16" else np.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise click.ClickException(str(error)) from None
    speed = expected_speed(chosen, kind, machine)
    call = Call(op, size, ranks, ranks_per_node, workers)
    advice = advise(call, machine, speed, can_add=chosen.can_add)
    _show(advice, call, machine, chosen.spec, speed)
    if schedule or plot is not None:
        if rank >= ranks:
            raise click.BadParameter(f"{rank} is not below the {ranks} ranks", param_hint="--rank")
        _show_schedule(call, machine, speed, advice.best, rank if schedule else None, plot)


def _show_schedule(call, machine, speed, option, rank: int | None, plot: Path | None) -> None:
    from compcoll.cli import timeline
    from compcoll.model.predict import run, schedule_of

    result = run(call, machine, speed, option.algorithm, option.chunk_nbytes, records=True)
    ranks = [schedule_of(call, r, option.algorithm, option.chunk_nbytes) for r in range(call.size)]
    if rank is not None:
        click.echo()
        for line in timeline.lines(ranks[rank], result):
            click.echo(line)
    if plot is not None:
        title = (
            f"{call.op} of {call.nbytes} bytes by {option.algorithm}, chunks of {option.chunk_nbytes} bytes"
        )
        timeline.draw(ranks, result, f"{title}: {1e3 * result.seconds:.3f} ms", plot)
        click.echo(f"The time line is {plot.resolve()}")


def _size(text: str) -> int:
    try:
        nbytes = nbytes_of(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="NBYTES") from None
    if nbytes < 1:
        raise click.BadParameter(f"{nbytes} is less than 1 byte", param_hint="NBYTES")
    return nbytes


def _show(advice, call, machine, spec: str, speed) -> None:
    from rich.console import Console
    from rich.table import Table

    console, link = Console(), machine.node if call.on_one_node else machine.network
    console.print(
        f"{call.op} of {call.nbytes} bytes a message on {call.size} ranks, {machine.name}: "
        f"{1e6 * link.latency:.1f} us, {link.bandwidth / 1e9:.3f} GB/s"
    )
    console.print(
        f"{spec}: encodes {speed.encode / 1e9:.2f}, decodes {speed.decode / 1e9:.2f} GB/s, "
        f"ratio {speed.ratio:.2f}"
    )
    table = Table()
    for heading in ("algorithm", "chunk, KiB", "predicted, ms", "against plain MPI"):
        table.add_column(heading, justify="left" if heading == "algorithm" else "right")
    for option in sorted((advice.plain, *advice.options), key=lambda option: option.seconds):
        chunk = "" if option is advice.plain else f"{option.chunk_nbytes >> 10}"
        gain = f"{advice.plain.seconds / option.seconds:.2f}x"
        table.add_row(option.algorithm, chunk, f"{1e3 * option.seconds:.3f}", gain)
    console.print(table)
    verdict = f"{spec} by {advice.best.algorithm}" if advice.pays else "to MPI unchanged"
    console.print(f"It would run: [bold]{verdict}[/bold] ({advice.reason}).")
