"""Messages in both directions of a wire at once, between two ranks.

``python -m benchmarks.netlab --hosts 2 --gbit 1 -- python -m benchmarks.both_ways``. Each rank sends as much
as it receives, by plain MPI and by a codec with chunks of several sizes, which take turns; the slower rank's
time counts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

import click
import numpy as np
from mpi4py import MPI

import compcoll

from .osu.output import as_json, describe

#: Calls that are not timed.
WARMUP = 2


def exchanges(world: MPI.Intracomm, n: int) -> dict[str, Callable[[Any], None]]:
    """Functions of a communicator that send n values to the other rank, and receive as many."""
    noise = np.random.default_rng(world.rank).normal(size=2 * n)
    send = (np.sin(np.arange(2 * n) / 100) + 1e-3 * noise).astype("f4")
    recv, peer = np.zeros_like(send), 1 - world.rank

    def sendrecv(comm: Any) -> None:
        comm.Sendrecv(send[:n], peer, 0, recv[:n], peer, 0)

    def pair(comm: Any) -> None:
        MPI.Request.Waitall([comm.Irecv(recv[:n], peer), comm.Isend(send[:n], peer)])

    def alltoall(comm: Any) -> None:
        comm.Alltoall(send, recv)

    return {"Sendrecv": sendrecv, "Irecv, Isend": pair, "Alltoall": alltoall}


def timed(world: MPI.Intracomm, exchange: Callable[[Any], None], comms: dict[str, Any], calls: int) -> Any:
    """Seconds of each call on each communicator, as the slower rank has it."""
    seconds: dict[str, list[float]] = {name: [] for name in comms}
    for call in range(WARMUP + calls):
        for name, comm in comms.items():
            world.Barrier()
            start = perf_counter()
            exchange(comm)
            taken = world.allreduce(perf_counter() - start, MPI.MAX)
            if call >= WARMUP:
                seconds[name].append(taken)
    return seconds


@click.command()
@click.option("--codec", default="raw", show_default=True)
@click.option("--chunks", default="", help="Sizes of chunks in KiB, besides the default: 256,1024,4096.")
@click.option("--mib", default=4, show_default=True, help="MiB of a message.")
@click.option("--calls", default=12, show_default=True)
@click.option("--json", "json_path", type=click.Path(), help="Write the figures to a file.")
def main(codec: str, chunks: str, mib: int, calls: int, json_path: str | None) -> None:
    """Time messages in both directions at once."""
    world = MPI.COMM_WORLD
    if world.size != 2:
        raise click.UsageError(f"{world.size} ranks, where 2 exchange messages")
    comms: dict[str, Any] = {"plain MPI": world, codec: compcoll.Comm(world, codec=codec)}
    for size in filter(None, chunks.split(",")):
        rule = {"codec": codec, "chunk_nbytes": int(size) << 10}
        comms[f"{codec}, {size} KiB"] = compcoll.Comm(world, policy={"rule": [rule]})
    rows = []
    for name, exchange in exchanges(world, mib << 18).items():
        for way, seconds in timed(world, exchange, comms, calls).items():
            rows.append({"exchange": name, "way": way, "seconds": seconds})
    about = describe(world, "both ways", "sine with noise", "f4")
    if world.rank:
        return
    click.echo(f"{mib} MiB each way, {calls} calls; milliseconds")
    click.echo(f"{'exchange':14}{'way':24}{'least':>8}{'median':>8}{'most':>8}")
    for row in rows:
        least, middle, most = (1e3 * f(row["seconds"]) for f in (min, np.median, max))
        click.echo(f"{row['exchange']:14}{row['way']:24}{least:8.1f}{middle:8.1f}{most:8.1f}")
    if json_path:
        command = " ".join(["python -m benchmarks.both_ways", *sys.argv[1:]])
        with open(json_path, "w") as file:
            file.write(as_json({**about, "command": command, "rows": rows}))


if __name__ == "__main__":
    main()
