"""Cost of counting and tracing, per call of a program.

``mpiexec -n 1 python -m benchmarks.tracing``; on more ranks times are those of waiting, too. The same calls
on a communicator that nobody watches, on one whose calls are counted (`compcoll run`), and on one whose calls
are written to files as well (``--trace``), in turns of so many that what is written in batches is in each;
the least time of a turn counts, as the slowest rank has it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import click
import numpy as np
from mpi4py import MPI

import compcoll
from compcoll.tracing.recording import Recording
from compcoll.tracing.trace import Trace

from .osu.output import as_json, describe

#: Large calls are accelerated on 2 ranks and more, at the least cost there is.
POLICY: dict[str, Any] = {"codec": "raw", "min_nbytes": 4096}
#: Calls of a turn, of which each way has as many.
CALLS = 512
#: Rounds of turns at most, and the seconds after which there are no more than the fewest.
ROUNDS, FEWEST, SECONDS = 40, 4, 5.0


class Counted(compcoll.Comm):
    """Whose calls are counted."""


class Traced(compcoll.Comm):
    """Whose calls are written down."""


def operations(world: MPI.Intracomm) -> dict[str, Callable[[compcoll.Comm], object]]:
    """Small calls, which MPI serves; a nonblocking pair; and a large call."""
    few, more = np.zeros(8), np.zeros(8)
    send, recv = np.ones(world.size << 13), np.zeros(world.size << 13)
    right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size

    def pair(comm: compcoll.Comm) -> None:
        requests = [comm.Irecv(more, left), comm.Isend(few, right)]
        requests[0].Wait()
        requests[1].Wait()

    return {
        "Bcast of 64 bytes": lambda comm: comm.Bcast(few),
        "Allreduce of 64 bytes": lambda comm: comm.Allreduce(few, more),
        "Irecv, Isend, two waits": pair,
        "Alltoall of 64 KiB": lambda comm: comm.Alltoall(send, recv),
    }


def least(world: MPI.Intracomm, call: Callable, ways: dict[str, tuple]) -> dict[str, float]:
    """Seconds of a call each way: the least of all rounds, of the slowest rank."""
    found: list[np.ndarray] = []
    rng, begun = np.random.default_rng(0), perf_counter()
    while len(found) < FEWEST or world.bcast(perf_counter() - begun < SECONDS and len(found) < ROUNDS):
        found.append(row := np.empty(len(ways)))
        for i in rng.permutation(len(ways)):
            comm, recording = list(ways.values())[i]
            if recording is not None:
                recording.resume()
            world.Barrier()
            start = perf_counter()
            for _ in range(CALLS):
                call(comm)
            row[i] = (perf_counter() - start) / CALLS
            Recording.pause()
    times = np.array(found)
    world.Allreduce(MPI.IN_PLACE, times, MPI.MAX)
    return dict(zip(ways, times.min(axis=0).tolist(), strict=True))


def measure(world: MPI.Intracomm, folder: Path) -> list[dict]:
    """A row for each operation."""
    counting = Recording((Counted,), None)
    tracing = Recording((Traced,), Trace(folder, world.rank, world.size))
    ways = {
        "off": (compcoll.Comm(world, **POLICY), None),
        "counted": (Counted(world, **POLICY), counting),
        "traced": (Traced(world, **POLICY), tracing),
    }
    rows = []
    for name, call in operations(world).items():
        found = least(world, call, ways)
        more = {f"{way} costs": found[way] - found["off"] for way in ("counted", "traced")}
        rows.append({"op": name, **found, **more, "ratio": found["traced"] / found["off"]})
    return rows


@click.command()
@click.option("--json", "json_path", type=click.Path(), help="Write the figures to a file.")
def main(json_path: str | None) -> None:
    """Time calls that are not watched, counted, and traced."""
    world = MPI.COMM_WORLD
    with TemporaryDirectory() as folder:
        rows = measure(world, Path(folder))
    about = describe(world, "tracing", None, "f8")
    if world.rank:
        return
    click.echo(f"{world.size} ranks; least of up to {ROUNDS} turns of {CALLS} calls, microseconds a call")
    click.echo(f"{'':26}{'off':>10}{'counted':>10}{'traced':>10}{'tracing costs':>15}{'ratio':>8}")
    for row in rows:
        times = "".join(f"{1e6 * row[way]:10.2f}" for way in ("off", "counted", "traced"))
        click.echo(f"{row['op']:26}{times}{1e6 * row['traced costs']:15.2f}{row['ratio']:8.2f}")
    if json_path:
        command = " ".join(["python -m benchmarks.tracing", *sys.argv[1:]])
        with open(json_path, "w") as file:
            file.write(as_json({**about, "command": command, "rows": rows}))


if __name__ == "__main__":
    main()
