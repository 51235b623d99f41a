"""``compcoll tune``: fill, show and clear the table that ``codec="auto"`` and ``when="pays"`` start from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import click
import numpy as np

from compcoll.cli.launch import is_launched, need_mpi, on_all, relaunch
from compcoll.cli.load import DType, load
from compcoll.cli.output import check_folder, wide_console
from compcoll.cli.spec import codec_option, ranks_option
from compcoll.operations import OPERATIONS

#: Bytes of the messages to try, unless a trace names others.
SIZES = tuple(64 << 10 << 2 * i for i in range(5))
#: Operations to try. Sums are left out: ``auto`` leaves them to MPI, because their order changes bits.
EXCHANGES = ("Alltoall", "Allgather", "Bcast")
SUMS = ("Allreduce", "Reduce_scatter_block")
#: Bytes of a file's values that are sent, repeated in larger messages.
MOST = 1 << 22
#: Calls between two looks at the clock.
EACH = 8


@click.command()
@ranks_option(2, 2, "Ranks to start.")
@codec_option("Codec to try against plain MPI.", default="lossless", show_default=True)
@click.option(
    "--seconds", type=click.FloatRange(1), default=60, show_default=True, help="Time limit of all trials."
)
@click.option(
    "--like",
    type=click.Path(path_type=Path),
    help="Try operations and sizes of a traced program, on values of --dtype or --data.",
)
@click.option("--data", type=click.Path(path_type=Path), help="Values to send.")
@click.option("--dtype", type=DType(), default="f4", show_default=True, help="Type of values without --data.")
@click.option("--show", is_flag=True, help="Print the tables of the user's cache, and exit.")
@click.option("--forget", is_flag=True, help="Remove the tables, and exit.")
@click.pass_context
def command(ctx, ranks, codec, seconds, like, data, dtype, show, forget) -> None:
    """Try calls compressed and plain, so that codec="auto" and when="pays" start with the faster way.

    Start it under mpiexec on the nodes of your jobs, with as many ranks on each. Without mpiexec it starts
    ranks on this machine, which is only useful for a named codec, because auto leaves all calls inside a node
    to MPI. Results that a job has measured itself are never replaced. Let nothing else run meanwhile.
    """
    if show:
        _show()
    elif forget:
        _forget()
    elif is_launched():
        need_mpi()
        _tune(codec, seconds, like, data, dtype)
    else:
        words = ["--codec", codec, "--seconds", str(seconds), "--dtype", np.dtype(dtype).name]
        for name, path in (("--like", like), ("--data", data)):
            words += [name, str(path)] if path else []
        ctx.exit(relaunch(ranks, ["tune", *words]))


def _tune(spec: str, seconds: float, like: Path | None, data: Path | None, dtype: np.dtype) -> None:
    """Make trials of all kinds while there is time, and print what they found; collective."""
    from mpi4py import MPI
    from rich.console import Console

    import compcoll
    from compcoll.policy import Policy, advisor
    from compcoll.policy.pairs import MOST_SPREAD
    from compcoll.policy.table import Rows

    world = MPI.COMM_WORLD
    # Only rank 0 reads files: other nodes may have different ones.
    found = on_all(world, lambda: _read(like, data, dtype, spec) if world.rank == 0 else None)
    values, kinds = world.bcast(found)
    policy = Policy("auto" if spec == "lossless" else spec, when="pays", min_nbytes=0)
    ours = compcoll.Comm(world, policy=policy)
    marked: Any = ours._marked
    if marked.idle:
        on_all(world, lambda: _refuse(marked.idle))
    advisor.made_by = "tune"
    # Rows of an earlier `compcoll tune` are measured again.
    rows = Rows([row for row in marked.measured.rows.all if row.by != "tune"])
    marked.measured = replace(marked.measured, rows=rows)
    until, missing = monotonic() + seconds, []
    with Console(quiet=world.rank != 0).status("trying") as status:
        for op, nbytes in kinds:
            status.update(f"trying {op} of {nbytes} bytes")
            tried = _try(world, marked.advisor, _call(ours, op, nbytes, values), until)
            if not tried or (marked.advisor.last and marked.advisor.last.known.spread > MOST_SPREAD):
                missing.append(f"{op} of {nbytes}")
    advisor.store().write()
    if world.rank == 0:
        _show(marked.measured.about)
        if missing:
            click.echo(
                f"Nothing is kept of {', '.join(missing)}: there was no time, of which --seconds gives more, "
                "or the machine was too busy to tell."
            )


def _refuse(why: str) -> None:
    raise click.ClickException(f"there is nothing to try: {why}; name a codec by --codec to try it anyway")


def _read(like: Path | None, data: Path | None, dtype: np.dtype, spec: str) -> tuple[np.ndarray, list]:
    """The values to send and the calls to try; ClickException for an unusable file or a table that is off."""
    from compcoll.core import environment
    from compcoll.policy.table import folder

    if environment.pretends_nodes():
        raise click.ClickException("nothing is kept of pretended nodes: unset COMPCOLL_NODES")
    place = folder()
    if place is None:
        raise click.ClickException("the table has no folder: set HOME, or set COMPCOLL_TABLE to a folder")
    check_folder(place, "the table of trials", "COMPCOLL_TABLE names another folder")
    try:
        return _values(data, dtype)[:MOST], _kinds(like, spec)
    except click.ClickException:
        raise
    except Exception as error:
        raise click.ClickException(f"{like or data}: {error or type(error).__name__}") from None


def _values(path: Path | None, dtype: np.dtype) -> np.ndarray:
    """The values that ranks send: a file's, else a smooth field with noise."""
    if path is not None:
        return np.ascontiguousarray(load(path, None, None)).reshape(-1)
    n = 1 << 20
    noise = np.random.default_rng(1).standard_normal(n)
    return (np.sin(np.arange(n) * 1e-3) + 1e-3 * noise).astype(dtype)


def _kinds(like: Path | None, spec: str) -> list[tuple[str, int]]:
    """Calls to try, as (operation, bytes of a message)."""
    import compcoll
    from compcoll.operations import MIN_NBYTES
    from compcoll.tracing.reader import read

    if like is None:
        ops = EXCHANGES if compcoll.codec(spec).lossless else EXCHANGES + SUMS
        return [(op, nbytes) for nbytes in SIZES for op in ops]
    calls = [call for _, call in read(like).calls() if call.op in EXCHANGES + SUMS and call.size]
    found = {
        (call.op, call.nbytes // call.size if OPERATIONS[call.op].shares_out else call.nbytes)
        for call in calls
    }
    return sorted(kind for kind in found if kind[1] >= MIN_NBYTES)


def _call(ours: Any, op: str, nbytes: int, values: np.ndarray) -> Callable[[], object]:
    """A call of an operation with messages of ``nbytes``."""
    n = max(nbytes // values.itemsize, 1)
    one = np.resize(values, n)
    many, room = np.resize(values, n * ours.size), np.empty(n * ours.size, values.dtype)
    return {
        "Alltoall": lambda: ours.Alltoall(many, room),
        "Allgather": lambda: ours.Allgather(one, room),
        "Bcast": lambda: ours.Bcast(one),
        "Allreduce": lambda: ours.Allreduce(many, room),
        "Reduce_scatter_block": lambda: ours.Reduce_scatter_block(many, one),
    }[op]


def _try(world: Any, advisor: Any, call: Callable[[], object], until: float) -> bool:
    """Make calls until their trial has ended; False if the time has run out first, by rank 0's clock."""
    while world.bcast(monotonic() < until):
        for _ in range(EACH):
            call()
        if advisor.last is None or advisor.last.known is not None:
            return True
    return False


# -- tables


def _show(only: Any = None) -> None:
    """Print the tables of the user's cache, or one of them."""
    from rich.markup import escape
    from rich.table import Column, Table

    from compcoll.policy.table import folder, tables

    found = [one for one in tables() if only is None or one[0].name == only.name]
    if not found:
        click.echo(f"There are no rows in {folder() or 'any folder: COMPCOLL_TABLE is off'}.")
    console = wide_console()
    for path, about, rows in found:
        title = (
            f"{path}: {about.mpi} on {', '.join(about.processors)}, a link of about "
            f"{2.0**about.link_MBps_log2:.0f} MB/s, cores for each rank: {about.cores_a_rank:g}, "
            f"{about.memory} memory"
        )
        console.print(title, markup=False)
        figures = ("bytes", "nodes x ranks", "compressed, us", "plain, us")
        table = Table("call", *(Column(name, justify="right") for name in figures), "way", "from")
        for row in rows:
            way = f"{row.codec} by {row.algorithm}" if row.compress else "plain MPI"
            cells = (
                f"{row.op} {row.type}",
                f"{row.bytes}",
                f"{len(row.ranks_a_node)} x {max(row.ranks_a_node)}",
                *(f"{1e6 * seconds:.0f}" for seconds in row.seconds),
                f"{way}, ratio {1 / row.share:.2f}, {row.pairs[1]} of {row.pairs[0]} pairs",
                f"{row.by} of {row.made}",
            )
            table.add_row(*map(escape, cells))
        console.print(table)


def _forget() -> None:
    """Remove the tables."""
    from compcoll.policy.table import tables

    found = tables()
    for path, _, _ in found:
        path.unlink(missing_ok=True)
    click.echo(f"Removed {sum(len(rows) for _, _, rows in found)} rows")
