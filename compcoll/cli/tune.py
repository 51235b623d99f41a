"""``compcoll tune``: fill, show and clear the table by which ``codec="auto"`` and ``when="pays"`` begin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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

#: Bytes of the messages that are tried where no trace names others.
SIZES = tuple(64 << 10 << 2 * i for i in range(5))
#: Operations; those that add up change bits by their order alone, so that ``auto`` has no use for them.
EXCHANGES = ("Alltoall", "Allgather", "Bcast")
SUMS = ("Allreduce", "Reduce_scatter_block")
#: Values of a file that are sent, again and again in larger messages.
MOST = 1 << 22
#: Calls after which the clock is looked at.
EACH = 8


@click.command()
@ranks_option(2, 2, "Ranks to start.")
@codec_option("Codec to try against plain MPI.", default="lossless", show_default=True)
@click.option(
    "--seconds", type=click.FloatRange(1), default=60, show_default=True, help="Time for all of it."
)
@click.option(
    "--like",
    type=click.Path(path_type=Path),
    help="Try operations and sizes of a traced program, on values of --dtype or --data.",
)
@click.option("--data", type=click.Path(path_type=Path), help="Values to send.")
@click.option("--dtype", type=DType(), default="f4", show_default=True, help="Type of values without --data.")
@click.option("--show", is_flag=True, help="Print the tables of the user's cache, and end.")
@click.option(
    "--forget", is_flag=False, flag_value="all", metavar="[ROW]", help="Remove all rows, or one of --show."
)
@click.option("--here", is_flag=True, help="Use the ranks that mpiexec started; never start others.")
@click.pass_context
def command(ctx, ranks, codec, seconds, like, data, dtype, show, forget, here) -> None:
    """Try calls compressed and plain, so that codec="auto" and when="pays" know how to begin.

    Start it under mpiexec on the nodes of your jobs, with as many ranks on each; outside of mpiexec it starts
    ranks on this machine, which is of use for a named codec alone: inside a node auto leaves all to MPI. What
    a job has tried itself is never replaced. Let nothing else run meanwhile.
    """
    if show:
        _show()
        return
    if forget is not None:
        _forget(forget)
        return
    if not (here or is_launched()):
        for name, path in (("--like", like), ("--data", data)):
            if path is not None and not path.exists():
                raise click.BadParameter(f"{path} does not exist", param_hint=name)
        words = ["--codec", codec, "--seconds", str(seconds), "--dtype", np.dtype(dtype).name]
        words += [
            word for name, path in (("--like", like), ("--data", data)) if path for word in (name, str(path))
        ]
        ctx.exit(relaunch(ranks, ["tune", "--here", *words]))
    need_mpi()
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    on_all(world, lambda: _check_folder() if world.rank == 0 else None)
    # Rank 0's files: those of other nodes may be others.
    found = on_all(world, lambda: _read(like, data, dtype, codec) if world.rank == 0 else None)
    values, kinds = world.bcast(found)
    _tune(world, kinds, codec, values, seconds)


def _check_folder() -> None:
    """ClickException where rows cannot be kept."""
    from compcoll.policy.table import folder

    place = folder()
    if place is None:
        raise click.ClickException("there is no place for rows: set HOME, or COMPCOLL_TABLE to a folder")
    check_folder(place, "the table of trials", "COMPCOLL_TABLE names another folder")


def _read(like: Path | None, data: Path | None, dtype: np.dtype, spec: str) -> tuple[np.ndarray, list]:
    """The values to send, and what is tried; ClickException where a file does not tell."""
    try:
        return _values(data, dtype)[:MOST], list(_kinds(like, spec))
    except click.ClickException:
        raise
    except Exception as error:
        raise click.ClickException(f"{like or data}: {error or type(error).__name__}") from None


def _values(path: Path | None, dtype: np.dtype) -> np.ndarray:
    """The values that ranks send: those of a file, else smooth ones with noise, as fields are."""
    if path is not None:
        return np.ascontiguousarray(load(path, None, None)).reshape(-1)
    n = 1 << 20
    noise = np.random.default_rng(1).standard_normal(n)
    return (np.sin(np.arange(n) * 1e-3) + 1e-3 * noise).astype(dtype)


def _kinds(like: Path | None, spec: str) -> Iterator[tuple[str, int]]:
    """(operation, bytes of a message) of what is tried."""
    import compcoll

    if like is not None:
        from compcoll.tracing.reader import read

        yield from sorted({kind for _, call in read(like).calls() if (kind := _kind_of(call)) is not None})
        return
    ops = EXCHANGES if compcoll.codec(spec).lossless else EXCHANGES + SUMS
    for nbytes in SIZES:
        for op in ops:
            yield op, nbytes


def _kind_of(call: Any) -> tuple[str, int] | None:
    """The kind of a traced call; None of what is not tried."""
    from compcoll.policy.policy import MIN_NBYTES

    if call.op not in (*EXCHANGES, *SUMS) or call.size < 1:
        return None
    nbytes = call.nbytes // call.size if OPERATIONS[call.op].shares_out else call.nbytes
    return (call.op, nbytes) if nbytes >= MIN_NBYTES else None


def _tune(world: Any, kinds: list, spec: str, values: np.ndarray, seconds: float) -> None:
    """Make trials of all kinds while there is time, and print what they found; collective."""
    from rich.console import Console

    import compcoll
    from compcoll import advisor
    from compcoll.policy import Policy
    from compcoll.policy.table import Rows
    from compcoll.policy.trial import MOST_SPREAD

    policy = Policy("auto" if spec == "lossless" else spec, when="pays", min_nbytes=0)
    ours = compcoll.Comm(world, policy=policy)
    marked: Any = ours._marked
    console = Console(quiet=world.rank != 0)
    if marked.idle:
        raise SystemExit(on_all(world, lambda: _refuse(marked.idle)))
    advisor.made_by = "tune"
    # Rows of its own are made anew.
    rows = Rows(row for row in marked.measured.rows.all if row.by != "tune")
    marked.measured = replace(marked.measured, rows=rows)
    until, left, busy = monotonic() + seconds, [], []
    with console.status("trying") as status:
        for op, nbytes in kinds:
            status.update(f"trying {op} of {nbytes} bytes")
            call = _call(ours, op, nbytes, values)
            if not _try(world, marked.advisor, call, until):
                left.append(f"{op} of {nbytes}")
            elif marked.advisor.last and marked.advisor.last.known.spread > MOST_SPREAD:
                busy.append(f"{op} of {nbytes}")
    advisor.store().write()
    if world.rank == 0:
        _show(marked.measured.about)
        if left:
            console.print(f"There was no time for {', '.join(left)}: --seconds gives it more.")
        if busy:
            console.print(f"The machine was too busy to tell, and nothing is kept: {', '.join(busy)}.")


def _refuse(why: str) -> None:
    raise click.ClickException(f"there is nothing to try: {why}; --codec names one to try all the same")


def _call(ours: Any, op: str, nbytes: int, values: np.ndarray) -> Callable[[], object]:
    """One call of an operation whose messages have so many bytes."""
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
    """Make calls until their trial is over; False where the time is, by rank 0's clock."""
    while world.bcast(monotonic() < until):
        for _ in range(EACH):
            call()
        if advisor.last is None or advisor.last.known is not None:
            return True
    return False


# -- tables


def _show(only: Any = None) -> None:
    """Print the tables of the user's cache, or one of them."""
    from compcoll.policy.table import folder, tables

    console, number = wide_console(), 0
    for path, about, rows in tables():
        if only is None or path.name == only.name:
            console.print(f"{path}: {_title(about)}", markup=False)
            console.print(_table(rows, number))
        number += len(rows)
    if not number:
        console.print(f"There are no rows in {folder() or 'any folder: COMPCOLL_TABLE is off'}.")


def _title(about: dict[str, Any]) -> str:
    """The machine and the network of a table."""
    try:
        return (
            f"{about['mpi']} on {', '.join(about['processors'])}, a link of about "
            f"{2.0 ** about['link_MBps_log2']:.0f} MB/s, cores for each rank: {about['cores_a_rank']:g}, "
            f"{about['memory']} memory"
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return "of another release"


def _table(rows: list, number: int) -> Any:
    """The rows, with numbers after this one."""
    from rich.markup import escape
    from rich.table import Table

    table = Table()
    for heading in ("row", "call", "bytes", "nodes x ranks", "compressed, us", "plain, us", "way", "from"):
        table.add_column(heading, justify="left" if heading in ("call", "way", "from") else "right")
    for row in rows:
        number += 1
        way = f"{row.tried} by {row.way[1]}" if row.compress else "plain MPI"
        cells = (
            f"{number}",
            f"{row.op} {row.type}",
            f"{row.bytes}",
            f"{row.nodes} x {max(row.ranks_a_node)}",
            f"{row.us[0]:.0f}",
            f"{row.us[1]:.0f}",
            f"{way}, ratio {row.ratio:.2f}, {row.pairs[1]} of {row.pairs[0]} pairs",
            f"{row.by} of {row.made}",
        )
        table.add_row(*map(escape, cells))
    return table


def _forget(which: str) -> None:
    """Remove rows from the tables: all of them, or that of a number."""
    from compcoll.policy.table import tables, write_file

    found = tables()
    n = sum(len(rows) for _, _, rows in found)
    if which != "all" and not (which.isdecimal() and 1 <= int(which) <= n):
        raise click.BadParameter(f"{which!r} is not a row from 1 to {n}", param_hint="--forget")
    number = 0
    for path, about, rows in found:
        kept = []
        for row in rows:
            number += 1
            if which not in ("all", str(number)):
                kept.append(row)
        if kept:
            write_file(path, about, kept)
        else:
            path.unlink(missing_ok=True)
    click.echo(f"Removed {n if which == 'all' else 1} of {n} rows")
