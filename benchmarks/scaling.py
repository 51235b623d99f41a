"""Predicted speed-up of each collective from 2 to thousands of ranks, over common fabrics.

The real algorithms run in virtual time, over a machine's profile, with as many ranks as are stated: see
compcoll/model/predict.py. Chunk sizes are those of the advisor's quick look.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from compcoll.model.advisor import Option, advise
from compcoll.model.plain import plain_seconds
from compcoll.model.predict import Call, predict
from compcoll.model.profile import FABRICS, CodecSpeed, MachineProfile, load
from compcoll.operations import ALGORITHMS

from .osu.output import as_json, environment
from .report.figures import scaling

__all__ = ["main", "predicted_row"]

OPERATIONS = ("Alltoall", "Allgather", "Bcast", "Reduce_scatter_block", "Allreduce")
#: Speeds of zfp at rate 8 for a profile without measurements: half of those of one AVX-512 core.
CAREFUL = CodecSpeed(1.5e9, 1.0e9, 4.0)
#: Algorithms that the quick look predicts to take more than so many times as long as the best are left out:
#: it is exact but for Bcast, whose pipelines take 0.75 to 1.3 times as long.
NEAR, NEAR_OF_BCAST = 1.1, 2.0


@click.command(context_settings={"show_default": True})
@click.option("--nbytes", default=1 << 20, type=click.IntRange(1), help="Bytes for or from each peer.")
@click.option(
    "--buffer", default=4 << 20, type=click.IntRange(1), help="Bytes of the buffer of Bcast and Allreduce."
)
@click.option(
    "--codec", "spec", default="zfp:rate=8", help="Codec, whose speed the profile of this machine gives."
)
@click.option("--dtype", default="float32", help="NumPy type of the values.")
@click.option("--encode", type=click.FloatRange(0, min_open=True), help="Assume this codec speed, in GB/s.")
@click.option("--decode", type=click.FloatRange(0, min_open=True), help="Assume this codec speed, in GB/s.")
@click.option("--memory", type=click.FloatRange(0, min_open=True), help="Assume this memory speed, in GB/s.")
@click.option("--max-ranks", default=4096, type=click.IntRange(2), help="Largest number of ranks.")
@click.option("--ranks-per-node", default=8, type=click.IntRange(1), help="Ranks that share a node's port.")
@click.option("--networks", default="1gbe,10gbe,25gbe,100gbe", help="Fabrics, separated by commas.")
@click.option("--operations", default=",".join(OPERATIONS), help="Operations, separated by commas.")
@click.option("--json", "json_path", type=click.Path(), help="Write the predictions to a file.")
@click.option("--plot", "plot_path", type=click.Path(), help="Draw them into a file, PNG, PDF or SVG.")
def main(
    nbytes,
    buffer,
    spec,
    dtype,
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
    unknown = [name for name in networks.split(",") if name not in FABRICS]
    if unknown:
        raise click.BadParameter(
            f"{unknown[0]!r} is not one of {', '.join(FABRICS)}", param_hint="--networks"
        )
    if wrong := [name for name in operations.split(",") if name not in OPERATIONS]:
        raise click.BadParameter(
            f"{wrong[0]!r} is not one of {', '.join(OPERATIONS)}", param_hint="--operations"
        )
    machine = load(lambda problem: click.echo(problem, err=True))
    speed = (machine.codec(spec, dtype) if machine else None) or CAREFUL
    machine = machine or MachineProfile("unknown", FABRICS["10gbe"], FABRICS["pcie4"])
    if encode:
        speed = replace(speed, encode=1e9 * encode, reconstruct=0.8e9 * encode)
    if decode:
        speed = replace(speed, decode=1e9 * decode)
    if memory:
        machine = replace(machine, memory=1e9 * memory)
    ranks = [2**k for k in range(1, 13) if 2**k <= max_ranks]
    cases = []
    for network, op, size in product(networks.split(","), operations.split(","), ranks):
        part = {"Bcast": buffer, "Allreduce": max(buffer // size, 1)}.get(op, nbytes)
        call = Call(op, part, size, ranks_per_node if size > ranks_per_node else 1)
        cases.append((network, call, machine.with_network(FABRICS[network], network), speed))
    rows = _simulate(cases)
    about = {
        "command": " ".join(["python -m benchmarks.scaling", *sys.argv[1:]]),
        "nbytes": nbytes,
        "buffer": buffer,
        "codec": spec,
        "dtype": dtype,
        "ranks_per_node": ranks_per_node,
        "encode": speed.encode,
        "decode": speed.decode,
        "ratio": speed.ratio,
        "memory": machine.memory,
        "profile": machine.name,
        **environment(),
    }
    _show(about, rows, ranks)
    if json_path:
        with open(json_path, "w") as file:
            file.write(as_json({**about, "rows": rows}))
    if plot_path:
        scaling([{**about, "rows": rows}], Path(plot_path))


def _simulate(cases: list[tuple[str, Call, MachineProfile, CodecSpeed]]) -> list[dict]:
    """A row for each case, on all cores, the long ones first."""
    order = sorted(range(len(cases)), key=lambda i: -cases[i][1].size)
    rows: dict[int, dict] = {}
    console = Console(stderr=True)
    # Forked children would share what MPI holds.
    with (
        ProcessPoolExecutor(mp_context=get_context("spawn")) as pool,
        Progress(console=console, transient=True, disable=not sys.stderr.isatty()) as progress,
    ):
        work = {pool.submit(predicted_row, *cases[i]): i for i in order}
        for done in progress.track(as_completed(work), total=len(work), description="simulating"):
            rows[work[done]] = done.result()
    return [rows[i] for i in range(len(cases))]


def predicted_row(network: str, call: Call, machine: MachineProfile, speed: CodecSpeed) -> dict:
    """The best compressed way and plain MPI."""
    hopeful: dict[tuple[str, int], Option] = {}
    for option in sorted(advise(call, machine, speed).options, key=lambda option: option.seconds):
        hopeful.setdefault((option.algorithm, option.levels), option)
    near = NEAR_OF_BCAST if call.op == "Bcast" else NEAR
    times = {
        option: predict(call, machine, speed, option.algorithm, option.chunk_nbytes, option.levels)
        for option in hopeful.values()
        if option.seconds < near * next(iter(hopeful.values())).seconds
    }
    best = min(times, key=times.__getitem__)
    seconds = times[best]
    names = [name for name in ALGORITHMS[call.op] if name not in ("compressed", "recursive_doubling")]
    plain = plain_seconds(call, machine, names)
    return {
        "network": network,
        "op": call.op,
        "ranks": call.size,
        "speedup": plain / seconds,
        "seconds": seconds,
        "plain_seconds": plain,
        "algorithm": best.name,
        "chunk_nbytes": best.chunk_nbytes,
    }


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
