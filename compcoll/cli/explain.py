"""``compcoll explain``."""

from __future__ import annotations

from math import inf
from pathlib import Path
from time import time
from typing import Any

import click

from compcoll.cli.load import DType
from compcoll.cli.output import check_writable
from compcoll.cli.spec import Operation, Size, codec_option, ranks_option

#: Seconds that a prediction may take of a codec that was not asked for.
_COMPARING = 0.1


@click.command()
@click.argument("op", metavar="OP", type=Operation())
@click.argument("nbytes", metavar="NBYTES", type=Size(1))
@ranks_option(2, 2, "Number of ranks.")
@codec_option("Codec, or auto: the best lossless one.", default="lossless", show_default=True, also=("auto",))
@click.option("--dtype", type=DType(), default="f4", show_default=True, help="Type of the values.")
@click.option("--network", help="A fabric by name in place of the measured network; `list` shows them.")
@click.option("--ranks-per-node", type=click.IntRange(1), default=1, show_default=True)
@click.option("--workers", type=click.IntRange(0), default=0, show_default=True, help="Idle cores of a rank.")
@click.option("--schedule", is_flag=True, help="Print what a rank does, and when in the prediction.")
@click.option("--rank", type=click.IntRange(0), default=0, show_default=True, help="The rank of --schedule.")
@click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw the time line into a file."
)
def command(op, nbytes, ranks, codec, dtype, network, ranks_per_node, workers, schedule, rank, plot) -> None:
    """Say what codec="auto" or when="pays" would do with a call, and why.

    OP is a method such as Alltoall, NBYTES the size of the buffer that a rank passes to it, such as 4M: the
    array SEND of comm.Alltoall(SEND, RECV), whose parts go to all ranks. The times of all alternatives are
    predicted from the profile that `compcoll tune` left, and those of other codecs, which when="pays" would
    use where one is named: lossy ones are more exact or less, as `compcoll codec` tells.
    """
    import compcoll
    from compcoll.core import dtypes
    from compcoll.model.advisor import advise, expected_speed
    from compcoll.model.predict import Call

    if network == "list":
        _list_fabrics()
        return
    if rank >= ranks:
        raise click.BadParameter(f"{rank} is not below the {ranks} ranks", param_hint="--rank")
    check_writable(plot, "the time line")
    call = Call.of_buffer(op, nbytes, ranks, ranks_per_node, workers)
    machine = _machine(call, network)
    chosen, kind = compcoll.codec("lossless" if codec == "auto" else codec), dtypes.real_dtype(dtype)
    if not chosen.lossless and kind not in dtypes.FLOATS:
        click.echo(f"# {dtype} is only ever coded losslessly")
        chosen = compcoll.codec("lossless")
    try:
        speed = expected_speed(chosen, kind, machine)
    except (TypeError, ValueError) as error:
        raise click.ClickException(str(error)) from None
    advice = advise(call, machine, speed, can_add=chosen.can_add)
    _show(advice, call, nbytes, machine, chosen.spec, speed)
    _show_codecs(_by_codec(call, machine, kind), advice.plain.seconds)
    if schedule or plot is not None:
        _show_schedule(call, machine, speed, advice.best, rank if schedule else None, plot)


def _by_codec(call, machine, dtype) -> list[tuple[str, float, Any]]:
    """(spec, ratio, best way) of codecs that take such data, the quickest first."""
    import compcoll
    from compcoll.codecs.registry import default_specs
    from compcoll.model.advisor import advise, expected_speed

    found = []
    for codec in map(compcoll.codec, default_specs(dtype)):
        if codec.name != "raw":
            speed = expected_speed(codec, dtype, machine)
            advice = advise(call, machine, speed, can_add=codec.can_add, limit=_COMPARING)
            found.append((codec.spec, speed.ratio, advice.best))
    return sorted(found, key=lambda row: row[2].seconds)


def _list_fabrics() -> None:
    from compcoll.model.profile import FABRICS

    for name, link in FABRICS.items():
        click.echo(f"{name:8s} {1e6 * link.latency:6.1f} us {link.bandwidth / 1e9:8.2f} GB/s")


def _machine(call, network: str | None):
    """The profile, behind another network where one is named; notes of what was not measured."""
    from compcoll.model.noise import LIMIT
    from compcoll.model.profile import FABRICS, UNKNOWN, load

    if network and network not in FABRICS:
        raise click.BadParameter(f"{network!r} is not one of {', '.join(FABRICS)}", param_hint="--network")
    if network and call.on_one_node:
        click.echo("# no message leaves the node: --network changes nothing")
    machine = load(lambda problem: click.echo(f"# {problem}", err=True))
    if machine is None:
        click.echo("# no profile of this machine yet (compcoll tune makes one): careful figures instead")
        machine = UNKNOWN
    else:
        noisy = f", more than {LIMIT:.0%}: run compcoll tune again" if LIMIT < machine.spread < inf else ""
        click.echo(f"# profile {machine.name}, {machine.provenance(time())}{noisy}")
        link, where = ("node", "inside a node") if call.on_one_node else ("network", "between nodes")
        if not network and link not in machine.measured:
            click.echo(
                f"# the profile has no link {where} (compcoll tune measures it): careful figures instead"
            )
    return machine.with_network(FABRICS[network], network) if network and not call.on_one_node else machine


def _show_schedule(call, machine, speed, option, rank: int | None, plot: Path | None) -> None:
    from compcoll.cli import timeline
    from compcoll.model.predict import run, schedule_of

    result = run(
        call, machine, speed, option.algorithm, option.chunk_nbytes, records=True, levels=option.levels
    )
    ranks = [
        schedule_of(call, r, option.algorithm, option.chunk_nbytes, option.levels) for r in range(call.size)
    ]
    if rank is not None:
        click.echo()
        for line in timeline.lines(ranks[rank], result):
            click.echo(line)
    if plot is not None:
        title = f"{call.op} of {call.nbytes} bytes by {option.name}, chunks of {option.chunk_nbytes} bytes"
        timeline.draw(ranks, result, f"{title}: {1e3 * result.seconds:.3f} ms", plot)
        click.echo(f"The time line is {plot.resolve()}")


def _show(advice, call, nbytes: int, machine, spec: str, speed) -> None:
    from rich.console import Console
    from rich.table import Table

    from compcoll.model.predict import SHARED

    console, link = Console(), machine.node if call.on_one_node else machine.network
    part = "" if call.nbytes == nbytes else f", {call.nbytes} to each"
    console.print(
        f"{call.op} of {nbytes} bytes on {call.size} ranks{part}; {machine.name}: "
        f"{1e6 * link.latency:.1f} us, {link.bandwidth / 1e9:.3f} GB/s"
    )
    console.print(
        f"{spec}: encodes {speed.encode / 1e9:.2f}, decodes {speed.decode / 1e9:.2f} GB/s, "
        f"ratio {speed.ratio:.2f}"
    )
    cores = "they share cores" if machine.sharing > SHARED else "each has a core"
    console.print(f"While all ranks work, a rank's work takes {machine.sharing:.2f} times as long: {cores}")
    table = Table()
    for heading in ("algorithm", "chunk, KiB", "predicted, ms", "against plain MPI"):
        table.add_column(heading, justify="left" if heading == "algorithm" else "right")
    for option in sorted((advice.plain, *advice.options), key=lambda option: option.seconds):
        chunk = "" if option is advice.plain else f"{option.chunk_nbytes >> 10}"
        gain = f"{advice.plain.seconds / option.seconds:.2f}x"
        table.add_row(option.name, chunk, f"{1e3 * option.seconds:.3f}", gain)
    console.print(table)
    verdict = f"{spec} by {advice.best.name}" if advice.pays else "plain MPI"
    console.print(f"auto takes [bold]{verdict}[/bold]: {advice.reason}.")


def _show_codecs(rows: list[tuple[str, float, Any]], plain: float) -> None:
    """Print the best way of every codec."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="the best of every codec")
    for heading in ("codec", "ratio", "algorithm", "predicted, ms", "against plain MPI"):
        table.add_column(heading, justify="left" if heading in ("codec", "algorithm") else "right")
    for spec, ratio, option in rows:
        milliseconds, gain = f"{1e3 * option.seconds:.3f}", f"{plain / option.seconds:.2f}x"
        table.add_row(spec, f"{ratio:.2f}", option.name, milliseconds, gain)
    Console().print(table)
