"""``python -m benchmarks.spare_cores``: gain from cores without a rank, between two hosts of a lab.

Each host has one rank and ``--cores`` cores of its own, or all of the machine's with ``--shared-cores``. Runs
with the default number of worker threads and with none (``COMPCOLL_THREADS=0``) take turns.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import click
from rich.console import Console
from rich.progress import track

from compcoll.core.sizes import nbytes_of

from .netlab import Lab, LabError

#: Names of the columns, and values of COMPCOLL_THREADS.
WORKERS = {"workers": None, "no workers": "0"}
#: Seconds that a row of calls may take.
_IN_A_ROW = 0.02


@click.command(context_settings={"show_default": True})
@click.option("--cores", default="1,2,4,8", help="Cores of each host; more than there are, are left out.")
@click.option("--shared-cores", is_flag=True, help="Give both hosts all cores in place of their own.")
@click.option("--gbit", default="5,10,25,40", help="Gb/s of the links.")
@click.option("--operations", default="alltoall,allreduce,allgather", help="Of python -m benchmarks.osu.")
@click.option("--sizes", default="4K,16K,64K,256K,1M,4M,16M,32M", help="Bytes of a message.")
@click.option("--codec", default="bfp:bits=7", help="Codec to compare with plain MPI.")
@click.option("--runs", default=5, help="Runs of each kind, which alternate.")
def main(
    cores: str, shared_cores: bool, gbit: str, operations: str, sizes: str, codec: str, runs: int
) -> None:
    """Print speed-ups over plain MPI with and without worker threads, as a Markdown table."""
    here = len(os.sched_getaffinity(0))
    hosts = [here] if shared_cores else [n for n in map(int, cores.split(",")) if 2 * n <= here]
    if not hosts:
        raise click.BadParameter(f"two hosts of {cores} cores need more than {here}", param_hint="--cores")
    links = [(n, float(rate)) for n in hosts for rate in gbit.split(",")]
    click.echo(f"{codec}, two hosts, speed-up over plain MPI, medians of {runs} runs\n")
    click.echo(f"| cores | Gb/s | operation | message | {' | '.join(WORKERS)} | with / without workers |")
    click.echo("| --- | ---: | --- | ---: | ---: | ---: | ---: |")
    for n, rate in track(links, "labs", console=Console(stderr=True)):
        try:
            with Lab(2, rate, cores_per_host=n, shared_cores=shared_cores) as lab:
                for operation in operations.split(","):
                    found = measure(lab, operation, sizes.split(","), codec, runs)
                    lines = rows(found, f"{n}{' shared' * shared_cores} | {rate:g} | {operation}")
                    click.echo("\n".join(lines))
        except LabError as error:
            raise click.ClickException(f"no lab: {error}") from None


def measure(
    lab: Lab, operation: str, sizes: list[str], codec: str, runs: int
) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Speed-up and seconds of a call in each run, by size and kind of workers."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for run in range(runs):
        for name in list(WORKERS) if run % 2 else reversed(list(WORKERS)):
            for size in sizes:
                row = one(lab, operation, size, codec, WORKERS[name])
                found[size][name].append((row["speedup"], row["seconds"]["median"]))
    return found


def one(lab: Lab, operation: str, size: str, codec: str, threads: str | None) -> dict:
    """Measure one size in a job of its own and return the codec's row."""
    environment = {key: value for key, value in os.environ.items() if key != "COMPCOLL_THREADS"}
    if threads is not None:
        environment["COMPCOLL_THREADS"] = threads
    seconds = nbytes_of(size) * 8e-9 / max(lab.gbit, 1) + 3e-5
    in_a_row = max(1, min(200, int(_IN_A_ROW / seconds)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.json"
        options = ["--codec", codec, "--sizes", size, "--min-nbytes", "1", "--iters", "9"]
        options += ["--in-a-row", str(in_a_row), "--json", str(path)]
        lab.run([sys.executable, "-m", "benchmarks.osu", operation, *options], env=environment, capture=True)
        rows = json.loads(path.read_text())["rows"]
    return next(row for row in rows if row["name"] == codec)


def rows(found: dict[str, dict[str, list[tuple[float, float]]]], start: str) -> list[str]:
    """Lines of the Markdown table."""
    lines = []
    for size, by_name in found.items():
        speedups = [statistics.median(speedup for speedup, _ in runs) for runs in by_name.values()]
        times = {name: statistics.median(seconds for _, seconds in runs) for name, runs in by_name.items()}
        gain = times["no workers"] / times["workers"]
        ordered = dict(zip(by_name, speedups, strict=True))
        cells = " | ".join(f"{ordered[name]:.2f}" for name in WORKERS)
        lines.append(f"| {start} | {size} | {cells} | {gain:.2f} |")
    return lines


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.spare_cores")
