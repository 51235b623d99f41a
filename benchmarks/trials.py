"""What ``codec="auto"`` gains and costs between hosts, beside plain MPI and the lossless codec.

``python -m benchmarks.trials`` runs a fresh job for each operation, size and speed of a network in a lab of
two hosts, as root. A job makes the calls of a trial, then times blocks of calls of plain MPI, of the lossless
codec and of ``auto``, and compares that with the quicker one of the others. ``--job`` times whole short jobs
instead: 20 calls of each of six kinds, with ``auto`` and with ``none``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import contextmanager
from statistics import median
from time import perf_counter
from typing import Any

import click

OPS = ("Alltoall", "Allgather", "Bcast")
SIZES = (64 << 10, 256 << 10, 4 << 20, 16 << 20)
#: Calls until a trial is over: of small kinds, and of those from 1 MiB a rank on.
TRIAL, LARGE_TRIAL = 152, 44
ROUNDS = 5
#: Calls of each kind of a short job, and its kinds.
JOB_CALLS = 20
JOB_KINDS = [(op, nbytes) for op in OPS for nbytes in (256 << 10, 4 << 20)]


# -- one job, on its ranks


def values(kind: str, n: int, rank: int) -> Any:
    """Float64 values: a wave, zeros, or random bits that no codec shrinks."""
    import numpy as np

    if kind == "zeros":
        return np.zeros(n)
    if kind == "noise":
        return np.random.default_rng(rank).integers(0, 1 << 62, n).view(np.float64)
    return np.sin(np.arange(n) * 1e-3 + rank)


def call_of(comm: Any, op: str, nbytes: int, kind: str) -> Callable[[], object]:
    """A call whose messages have so many bytes."""
    import numpy as np

    n = nbytes // 8
    one, many = values(kind, n, comm.rank), values(kind, n * comm.size, comm.rank)
    room = np.empty(n * comm.size)
    if op == "Ialltoall":
        work = np.random.default_rng(0).random((256, 256))

        def beside() -> None:
            request = comm.Ialltoall(many, room)
            for _ in range(4):
                work @ work
            request.Wait()

        return beside
    return {
        "Alltoall": lambda: comm.Alltoall(many, room),
        "Allgather": lambda: comm.Allgather(one, room),
        "Bcast": lambda: comm.Bcast(one),
    }[op]


def pause(seconds: float) -> None:
    """Keep a core busy, as a program between its calls."""
    until = perf_counter() + seconds
    while perf_counter() < until:
        pass


def compare(op: str, nbytes: int, gap: float, first: int, kind: str) -> None:
    """Time one kind, and print a row of JSON on rank 0."""
    from mpi4py import MPI

    import compcoll

    world = MPI.COMM_WORLD
    start = perf_counter()
    comms = {"auto": compcoll.Comm(world)}
    made = perf_counter() - start
    comms |= {"none": compcoll.Comm(world, codec="none"), "lossless": compcoll.Comm(world, codec="lossless")}
    calls = {name: call_of(comm, op, nbytes, kind) for name, comm in comms.items()}
    if op.startswith("I"):  # which go as blocking ones
        blocking = call_of(comms["auto"], "Alltoall", nbytes, kind)
    start = perf_counter()
    for _ in range(first):
        blocking() if op.startswith("I") else calls["auto"]()
        pause(gap)
    taken = world.bcast(perf_counter() - start)
    n = max(4, min(60, int(0.15 * max(first, 1) / max(taken, 1e-3))))
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            call()
            world.Barrier()
            start = perf_counter()
            for _ in range(n):
                call()
                pause(gap)
            world.Barrier()
            found[name].append((perf_counter() - start) / n)
    row = {name: 1e3 * median(series) for name, series in found.items()}
    report = comms["auto"].report
    if world.rank == 0:
        better = min(row["none"], row["lossless"])
        row |= {"op": op, "nbytes": nbytes, "ranks": world.size, "gap": 1e3 * gap, "data": kind}
        row |= {"better": better / row["auto"], "accelerated": report.accelerated, "reason": report.reason}
        print(json.dumps(row | {"made": 1e3 * made}), flush=True)


def short_job(codec: str) -> None:
    """Time a job of few calls, from the making of its communicator on."""
    from mpi4py import MPI

    import compcoll

    world = MPI.COMM_WORLD
    world.Barrier()
    start = perf_counter()
    comm = compcoll.Comm(world, codec=codec)
    made = perf_counter() - start
    spent = []
    for op, nbytes in JOB_KINDS:
        call = call_of(comm, op, nbytes, "wave")
        world.Barrier()
        start = perf_counter()
        for _ in range(JOB_CALLS):
            call()
        world.Barrier()
        spent.append(perf_counter() - start)
    if world.rank == 0:
        row = {"codec": codec, "made": 1e3 * made, "calls": [1e3 * s for s in spent]}
        print(json.dumps(row | {"all": 1e3 * (made + sum(spent))}), flush=True)


# -- all jobs


@contextmanager
def busy_core(wanted: bool):
    """Have one core busy with something else."""
    if not wanted:
        yield
        return
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        try:
            yield
        finally:
            other.kill()


@click.command()
@click.option("--gbit", "speeds", type=float, multiple=True, default=(1.0, 2.5, 5.0, 10.0), show_default=True)
@click.option("--burst", "bursts", type=int, multiple=True, default=(72 << 10, 1 << 20), show_default=True)
@click.option("--op", "ops", multiple=True, default=OPS, show_default=True)
@click.option(
    "--nbytes", "sizes", type=int, multiple=True, default=SIZES, show_default=True, help="Of a message."
)
@click.option("--gap", "gaps", type=float, multiple=True, default=(0.0,), help="Milliseconds between calls.")
@click.option("--ppn", default=1, show_default=True, help="Ranks on each of two hosts.")
@click.option("--data", type=click.Choice(["wave", "zeros", "noise"]), default="wave", show_default=True)
@click.option("--busy", is_flag=True, help="Keep one core busy with something else.")
@click.option("--table", help="Folder of the table of trials. [default: none]")
@click.option("--first", type=int, help="Calls of auto before it is timed. [default: those of a trial]")
@click.option("--job", is_flag=True, help="Time short jobs with auto and with none.")
@click.option("--repeat", default=3, show_default=True, help="Short jobs of each kind.")
def main(speeds, bursts, ops, sizes, gaps, ppn, data, busy, table, first, job, repeat) -> None:
    """Compare auto with the better one of plain MPI and the lossless codec, between two hosts."""
    from .netlab.lab import Lab

    os.environ["COMPCOLL_TABLE"] = table or "off"
    rows = []
    for speed in speeds:
        for burst in bursts:
            with Lab(2, speed, burst=burst) as lab, busy_core(busy):

                def run(*words: Any, lab=lab) -> dict[str, Any]:
                    argv = [sys.executable, "-m", "benchmarks.trials", "rank", *map(str, words)]
                    done = lab.run(argv, ppn=ppn, capture=True, timeout=300)
                    return json.loads(done.stdout.splitlines()[-1])

                if job:
                    pairs = [[run(codec)["all"] for codec in ("none", "auto")] for _ in range(repeat)]
                    none, auto = (median(series) for series in zip(*pairs, strict=True))
                    click.echo(f"{speed:4g} Gb/s, burst {burst:7d}: none {none:.0f} ms, auto {auto:.0f} ms")
                    continue
                for op in ops:
                    for nbytes in sizes:
                        for gap in gaps:
                            large = nbytes * (1 if op == "Bcast" else 2 * ppn) >= 1 << 20
                            n = (LARGE_TRIAL if large else TRIAL) + 1 if first is None else first
                            row = run(op, nbytes, 1e-3 * gap, n, data)
                            rows.append(row)
                            _show(speed, burst, row)
    if rows:
        worst = min(rows, key=lambda row: row["better"])
        good = sum(row["better"] >= 0.95 for row in rows)
        click.echo(
            f"{good} of {len(rows)} at least 0.95 of the better way; the least is {worst['better']:.2f}"
        )


def _show(speed: float, burst: int, row: dict[str, Any]) -> None:
    way = "lossless" if row["accelerated"] else "plain"
    click.echo(
        f"{speed:4g} Gb/s, burst {burst:7d}, {row['op']:9s} {row['nbytes']:8d}, gap {row['gap']:.1f}: "
        f"none {row['none']:7.3f} lossless {row['lossless']:7.3f} auto {row['auto']:7.3f} ms, "
        f"{row['better']:.2f} of the better way; {way}: {row['reason'][:90]}"
    )


def _rank(words: list[str]) -> None:
    if len(words) == 1:
        short_job(words[0])
    else:
        op, nbytes, gap, first, kind = words
        compare(op, int(nbytes), float(gap), int(first), kind)


if __name__ == "__main__":
    _rank(sys.argv[2:]) if sys.argv[1:2] == ["rank"] else main()
