"""Predicted speed-up of each collective from 2 to thousands of ranks, over common fabrics.

The library's algorithms run in virtual time with the stated number of ranks: see benchmarks/simulation, whose
quick look chooses the chunk sizes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from itertools import product
from math import inf
from multiprocessing import get_context
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from .osu.output import as_json, environment
from .report.figures import scaling
from .simulation.fabrics import FABRICS, NODE, NODE_MEMORY, network_of
from .simulation.measured import CoreSpeed, measure_core
from .simulation.node import moved_nbytes
from .simulation.plain import plain_seconds
from .simulation.predict import Collective
from .simulation.virtual import Profile
from .simulation.ways import quick_look

__all__ = ["main", "predicted_row"]

#: Sizes for which MPICH uses its algorithms for long messages (MPIR_CVAR_ALLTOALL_MEDIUM_MSG_SIZE).
LONG = click.IntRange(32 << 10)
POSITIVE = click.FloatRange(0, min_open=True)
OPERATIONS = ("Alltoall", "Allgather", "Bcast", "Reduce_scatter_block", "Allreduce")
#: Relative encoding speed of a codec that returns the decoded values too.
RECONSTRUCTED = 0.8
#: Fixed seconds of an operation on a chunk, in addition to the time for its bytes.
OPERATION = 2e-6


def _names_of(known: Collection[str]) -> Callable[..., list[str]]:
    """Callback of an option that takes known names, separated by commas."""

    def split(context: click.Context, parameter: click.Parameter, value: str) -> list[str]:
        names = value.split(",")
        if wrong := [name for name in names if name not in known]:
            raise click.BadParameter(f"{wrong[0]!r} is not one of {', '.join(known)}")
        return names

    return split


def _integers(least: int) -> Callable[..., list[int]]:
    """Callback of an option that takes integers, separated by commas."""

    def split(context: click.Context, parameter: click.Parameter, value: str) -> list[int]:
        numbers = [click.INT.convert(word, parameter, context) for word in value.split(",")]
        if min(numbers) < least:
            raise click.BadParameter(f"{min(numbers)} is less than {least}")
        return numbers

    return split


def _networks(context: click.Context, parameter: click.Parameter, value: str) -> list[str]:
    names = value.split(",")
    for name in names:
        try:
            network_of(name)
        except ValueError:
            known = ", ".join(FABRICS)
            raise click.BadParameter(f"{name!r} is neither a number of Gb/s nor one of {known}") from None
    return names


@click.command(context_settings={"show_default": True})
@click.option("--nbytes", default=1 << 20, type=LONG, help="Bytes for or from each peer.")
@click.option(
    "--buffers",
    default=str(4 << 20),
    callback=_integers(32 << 10),
    help="Bytes of the buffer of Allreduce, separated by commas; Bcast has the first.",
)
@click.option("--codec", default="bfp:bits=7", help="Codec; one core of this machine shows how fast it is.")
@click.option("--ratio", type=POSITIVE, help="Its ratio, instead of the measured one.")
@click.option("--encode", type=POSITIVE, help="GB/s of values, instead of the measured speed.")
@click.option("--decode", type=POSITIVE, help="GB/s of values, instead of the measured speed.")
@click.option("--memory", type=POSITIVE, help="GB/s that a core copies, instead of the measured speed.")
@click.option("--node-memory", default=NODE_MEMORY / 1e9, type=POSITIVE, help="GB/s of all cores of a node.")
@click.option("--ranks", default="64,512,4096", callback=_integers(2), help="Numbers of ranks.")
@click.option("--ranks-per-node", default="8,64", callback=_integers(1), help="Ranks that share a port.")
@click.option("--cores", default="1,4,8", callback=_integers(1), help="Cores of a rank.")
@click.option(
    "--networks",
    default="10,25,50,100,200,400",
    callback=_networks,
    help=f"Gb/s of a node, or {', '.join(FABRICS)}.",
)
@click.option(
    "--operations",
    default=",".join(OPERATIONS),
    callback=_names_of(OPERATIONS),
    help="Operations, separated by commas.",
)
@click.option("--json", "json_path", type=click.Path(), help="Write the predictions to a file.")
@click.option("--plot", "plot_path", type=click.Path(), help="Draw them into a file, PNG, PDF or SVG.")
def main(
    nbytes,
    buffers,
    codec,
    ratio,
    encode,
    decode,
    memory,
    node_memory,
    ranks,
    ranks_per_node,
    cores,
    networks,
    operations,
    json_path,
    plot_path,
):
    """Predict the speed-up of compressed collectives over plain MPI at scale."""
    speed = measure_core(codec)
    given = {"encode": encode, "decode": decode, "memory": memory}
    speed = replace(speed, **{name: 1e9 * value for name, value in given.items() if value})
    speed = replace(speed, ratio=ratio or speed.ratio)
    sizes = {"Bcast": buffers[:1], "Allreduce": buffers}
    calls = [
        (size, Collective(op, max(size // n, 1) if op == "Allreduce" else size, n, k if n > k else 1))
        for op in operations
        for size in sizes.get(op, [nbytes])
        for n, k in product(ranks, ranks_per_node)
    ]
    profiles = {count: profile_of(speed, count) for count in cores}
    rows = _simulate([(size, call, profiles, networks, 1e9 * node_memory) for size, call in calls])
    about = {
        "command": " ".join(["python -m benchmarks.scaling", *sys.argv[1:]]),
        "codec": codec,
        **asdict(speed),
        "node_memory": 1e9 * node_memory,
        **environment(),
        "rows": rows,
    }
    _show(about)
    if json_path:
        with open(json_path, "w") as file:
            file.write(as_json(about))
    if plot_path:
        scaling([about], Path(plot_path))


def profile_of(speed: CoreSpeed, cores: int) -> Profile:
    """Machine of ranks with as many cores, which work like one core of their speeds' sum."""
    return Profile(
        node=NODE,
        encode=cores * speed.encode,
        decode=cores * speed.decode,
        reconstruct=cores * speed.encode * RECONSTRUCTED,
        ratio=speed.ratio,
        call=OPERATION,
        memory=cores * speed.memory,
    )


def _simulate(cases: list[tuple]) -> list[dict]:
    """Simulate all calls on all cores, the longest first; return their rows."""
    order = sorted(range(len(cases)), key=lambda i: -cases[i][1].size)
    rows: dict[int, list[dict]] = {}
    console = Console(stderr=True)
    # Forked children would share MPI's state.
    with (
        ProcessPoolExecutor(mp_context=get_context("spawn")) as pool,
        Progress(console=console, transient=True, disable=not sys.stderr.isatty()) as progress,
    ):
        work = {pool.submit(_rows_of, *cases[i]): i for i in order}
        for done in progress.track(as_completed(work), total=len(work), description="simulating"):
            rows[work[done]] = done.result()
    return [row for i in range(len(cases)) for row in rows[i]]


def _rows_of(
    nbytes: int, call: Collective, profiles: dict[int, Profile], networks: list[str], node_memory: float
) -> list[dict]:
    """Rows of a call; one process makes all of them, since they have the same schedules.

    A rank need not use all its cores: more of them are never slower. Plain MPI adds with the fewest of them.
    """
    about = {"op": call.op, "nbytes": nbytes, "ranks": call.size, "ranks_per_node": call.ranks_per_node}
    rows: list[dict] = []
    least: dict[str, dict] = {}
    alone: dict[str, float] = {}
    for cores, profile in sorted(profiles.items()):
        for network in networks:
            row = predicted_row(call, profile, network, node_memory)
            least[network] = min(row, least.get(network, row), key=lambda row: row["seconds"])
            plain, best = alone.setdefault(network, row["plain_seconds"]), least[network]
            gain = {"plain_seconds": plain, "speedup": plain / best["seconds"]}
            rows.append({**about, "cores": cores, **best, **gain})
    return rows


def predicted_row(call: Collective, profile: Profile, network: str, node_memory: float = inf) -> dict:
    """Times of the best compressed way and of plain MPI, neither shorter than the node's memory allows."""
    profile = profile.with_(network=network_of(network))
    looks = quick_look(call, profile)
    best = min(looks, key=looks.__getitem__)
    # The quick look of a Bcast is 0.75 to 1.3 times the exact time, and otherwise near it.
    seconds = best.seconds(call, profile) if call.op == "Bcast" else looks[best]
    ours = max(seconds, moved_nbytes(call, profile.ratio) / node_memory)
    plain = max(plain_seconds(call, profile), moved_nbytes(call) / node_memory)
    return {
        "network": network,
        "speedup": plain / ours,
        "seconds": ours,
        "plain_seconds": plain,
        "algorithm": best.name,
        "chunk_nbytes": best.chunk_nbytes,
    }


def _show(about: dict) -> None:
    networks = list(dict.fromkeys(row["network"] for row in about["rows"]))
    table = Table(title=f"Predicted speed-up of {about['codec']} over plain MPI")
    headings = ("operation", "bytes", "ranks", "ranks a node", "cores a rank")
    for heading in (*headings, *networks):
        table.add_column(heading, justify="left" if heading == "operation" else "right")
    found: dict[tuple, list[str]] = {}
    for row in about["rows"]:
        key = tuple(str(row[name]) for name in ("op", "nbytes", "ranks", "ranks_per_node", "cores"))
        found.setdefault(key, []).append(f"{row['speedup']:.2f}")
    for key, values in found.items():
        table.add_row(*key, *values)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
