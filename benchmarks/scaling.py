"""Predicted speed-up of each collective from 2 to thousands of ranks, over common fabrics.

The library's algorithms run in virtual time with the stated number of ranks: see benchmarks/simulation, whose
quick look chooses the chunk sizes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from .osu.output import as_json, environment
from .report.figures import scaling
from .simulation.fabrics import FABRICS, NODE
from .simulation.plain import plain_seconds
from .simulation.predict import Collective
from .simulation.virtual import Profile
from .simulation.ways import Way, quick_look

__all__ = ["main", "predicted_row"]

#: Sizes for which MPICH uses its algorithms for long messages (MPIR_CVAR_ALLTOALL_MEDIUM_MSG_SIZE).
LONG = click.IntRange(32 << 10)
POSITIVE = click.FloatRange(0, min_open=True)
OPERATIONS = ("Alltoall", "Allgather", "Bcast", "Reduce_scatter_block", "Allreduce")
#: Relative encoding speed of a codec that returns the decoded values too.
RECONSTRUCTED = 0.8
#: Fixed seconds of an operation on a chunk, in addition to the time for its bytes.
OPERATION = 2e-6
#: Algorithms are left out if the quick look predicts more than these multiples of the best time. The quick
#: look is exact except for one level among nodes of many ranks, up to 1.4 times as long, and Bcast, 0.75 to
#: 1.3 times.
NEAR, NEAR_OF_BCAST = 1.1, 2.0


def _names_of(known: Collection[str]) -> Callable[..., list[str]]:
    """Callback of an option that takes known names, separated by commas."""

    def split(context: click.Context, parameter: click.Parameter, value: str) -> list[str]:
        names = value.split(",")
        if wrong := [name for name in names if name not in known]:
            raise click.BadParameter(f"{wrong[0]!r} is not one of {', '.join(known)}")
        return names

    return split


@click.command(context_settings={"show_default": True})
@click.option("--nbytes", default=1 << 20, type=LONG, help="Bytes for or from each peer.")
@click.option("--buffer", default=4 << 20, type=LONG, help="Bytes of the buffer of Bcast and Allreduce.")
@click.option("--codec", default="zfp:rate=8", help="Codec, by name alone; the next options describe it.")
@click.option("--ratio", default=4.0, type=POSITIVE, help="Its ratio.")
@click.option("--encode", default=1.5, type=POSITIVE, help="GB/s of values: half of one AVX-512 core's.")
@click.option("--decode", default=1.0, type=POSITIVE, help="GB/s of values.")
@click.option("--memory", default=8.0, type=POSITIVE, help="GB/s that a core copies.")
@click.option("--max-ranks", default=4096, type=click.IntRange(2), help="Largest number of ranks.")
@click.option("--ranks-per-node", default=8, type=click.IntRange(1), help="Ranks that share a node's port.")
@click.option(
    "--networks",
    default="1gbe,10gbe,25gbe,100gbe",
    callback=_names_of(FABRICS),
    help="Fabrics, separated by commas.",
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
    buffer,
    codec,
    ratio,
    encode,
    decode,
    memory,
    max_ranks,
    ranks_per_node,
    networks,
    operations,
    json_path,
    plot_path,
):
    """Predict the speed-up of compressed collectives over plain MPI at scale."""
    profile = Profile(
        node=NODE,
        encode=1e9 * encode,
        decode=1e9 * decode,
        reconstruct=1e9 * encode * RECONSTRUCTED,
        ratio=ratio,
        call=OPERATION,
        memory=1e9 * memory,
    )
    ranks = [2**k for k in range(1, 13) if 2**k <= max_ranks]
    cases = []
    for network, op, size in product(networks, operations, ranks):
        part = {"Bcast": buffer, "Allreduce": max(buffer // size, 1)}.get(op, nbytes)
        call = Collective(op, part, size, ranks_per_node if size > ranks_per_node else 1)
        cases.append((network, call, profile.with_(network=FABRICS[network])))
    rows = _simulate(cases)
    about = {
        "command": " ".join(["python -m benchmarks.scaling", *sys.argv[1:]]),
        "nbytes": nbytes,
        "buffer": buffer,
        "codec": codec,
        "ranks_per_node": ranks_per_node,
        "encode": profile.encode,
        "decode": profile.decode,
        "ratio": ratio,
        "memory": profile.memory,
        **environment(),
    }
    _show(about, rows, ranks)
    if json_path:
        with open(json_path, "w") as file:
            file.write(as_json({**about, "rows": rows}))
    if plot_path:
        scaling([{**about, "rows": rows}], Path(plot_path))


def _simulate(cases: list[tuple[str, Collective, Profile]]) -> list[dict]:
    """Simulate all cases on all cores, the longest first; return a row for each."""
    order = sorted(range(len(cases)), key=lambda i: -cases[i][1].size)
    rows: dict[int, dict] = {}
    console = Console(stderr=True)
    # Forked children would share MPI's state.
    with (
        ProcessPoolExecutor(mp_context=get_context("spawn")) as pool,
        Progress(console=console, transient=True, disable=not sys.stderr.isatty()) as progress,
    ):
        work = {pool.submit(predicted_row, *cases[i]): i for i in order}
        for done in progress.track(as_completed(work), total=len(work), description="simulating"):
            rows[work[done]] = done.result()
    return [rows[i] for i in range(len(cases))]


def predicted_row(network: str, call: Collective, profile: Profile) -> dict:
    """Row with the times of the best compressed way and of plain MPI."""
    seconds = best_ways(call, profile)
    best = min(seconds, key=seconds.__getitem__)
    plain = plain_seconds(call, profile)
    return {
        "network": network,
        "op": call.op,
        "ranks": call.size,
        "speedup": plain / seconds[best],
        "seconds": seconds[best],
        "plain_seconds": plain,
        "algorithm": best.name,
        "chunk_nbytes": best.chunk_nbytes,
    }


def best_ways(call: Collective, profile: Profile) -> dict[Way, float]:
    """Seconds of each algorithm with its best chunk size, if the quick look finds it near the best."""
    looks = sorted(quick_look(call, profile).items(), key=lambda look: look[1])
    least, near = looks[0][1], NEAR_OF_BCAST if call.op == "Bcast" else NEAR
    hopeful: dict[tuple[str, int], Way] = {}
    for way, seconds in looks:
        if seconds < near * least:
            hopeful.setdefault((way.algorithm, way.levels), way)
    return {way: way.seconds(call, profile) for way in hopeful.values()}


def _show(about: dict, rows: list[dict], ranks: list[int]) -> None:
    table = Table(
        title=f"Predicted speed-up of {about['codec']} over plain MPI, {about['nbytes']} bytes, "
        f"{about['ranks_per_node']} ranks per node"
    )
    for heading in ("network", "operation", *map(str, ranks)):
        table.add_column(heading, justify="left" if heading.isalpha() else "right")
    for network, op in dict.fromkeys((row["network"], row["op"]) for row in rows):
        values = [f"{r['speedup']:.2f}" for r in rows if (r["network"], r["op"]) == (network, op)]
        table.add_row(network, op, *values)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
