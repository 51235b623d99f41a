"""Cost of counting and tracing, per call of a program.

``mpiexec -n 1 python -m benchmarks.tracing``; on more ranks times are those of waiting, too. Calls that
nobody records, calls that are counted (`compcoll run`), and calls that are written to files as well
(``--trace``) take turns, each of so many calls that what is written in batches is in it. The least time of a
turn counts.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import click
import numpy as np
from mpi4py import MPI

import compcoll
from compcoll.engine import _engine
from compcoll.tracing.recording import Recording
from compcoll.tracing.writer import Trace

#: Calls of a turn, and turns of each way.
CALLS, TURNS = 2048, 12


def operations(comm: compcoll.Comm) -> dict[str, Callable[[], object]]:
    """Small calls, which MPI serves; a nonblocking pair; and a large call."""
    few, more = np.zeros(8), np.zeros(8)
    send, recv = np.ones(comm.size << 13), np.zeros(comm.size << 13)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size

    def pair() -> None:
        MPI.Request.Waitall([comm.Irecv(more, left), comm.Isend(few, right)])

    return {
        "Bcast of 64 bytes": lambda: comm.Bcast(few),
        "Allreduce of 64 bytes": lambda: comm.Allreduce(few, more),
        "Irecv, Isend, Waitall": lambda: MPI.Request.Waitall(
            [comm.Irecv(more, left), comm.Isend(few, right)]
        ),
        "Alltoall of 64 KiB": lambda: comm.Alltoall(send, recv),
    }


def turn(comm: MPI.Intracomm, call: Callable[[], object], recording: Recording | None) -> float:
    """Seconds of a call in a turn, of the slowest rank."""
    if recording is not None:
        recording.begin()
    comm.Barrier()
    start = perf_counter()
    for _ in range(CALLS):
        call()
    if recording is not None:
        recording.flush()
    seconds = (perf_counter() - start) / CALLS
    _engine.end_records()
    return comm.allreduce(seconds, MPI.MAX)


@click.command()
def main() -> None:
    """Time calls that are not recorded, counted, and traced."""
    world = MPI.COMM_WORLD
    comm = compcoll.Comm(world, "raw", min_nbytes=4096)
    with TemporaryDirectory() as folder:
        ways = [None, Recording(None), Recording(Trace(Path(folder), world.rank, world.size))]
        found = {
            name: [min(turn(world, call, way) for _ in range(TURNS)) for way in ways]
            for name, call in operations(comm).items()
        }
    if world.rank == 0:
        click.echo(f"{world.size} ranks, the least of {TURNS} turns of {CALLS} calls, microseconds a call")
        click.echo(f"{'':26}{'off':>10}{'counted':>10}{'traced':>10}")
        for name, seconds in found.items():
            click.echo(f"{name:26}" + "".join(f"{1e6 * one:10.2f}" for one in seconds))


if __name__ == "__main__":
    main()
