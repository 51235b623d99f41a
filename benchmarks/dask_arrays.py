"""Dask's workers on two hosts: ``python -m benchmarks.netlab --gbit 1 -- python -m benchmarks.dask_arrays``.

Each way of sending arrays has its own cluster: scheduler and client in the process of rank 0, and a worker
process on each host. The workers make the data, a smooth field with noise, before each timing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from time import perf_counter
from typing import Any

import click
import numpy as np
from mpi4py import MPI

_WAYS = ("none", "lz4", "zstd", "lossless", "szp:abs=1e-3")
_SECONDS = 120


def field(block_info: Any = None, seed: int = 0) -> np.ndarray:
    """A chunk of a smooth field with noise of 0.1 %."""
    (shape,), (place,) = ((block_info[None][key],) for key in ("chunk-shape", "chunk-location"))
    rows, columns = (np.arange(n) + at * n for n, at in zip(shape, place, strict=True))
    noise = np.random.default_rng([seed, *place]).standard_normal(shape, np.float32)
    return (np.sin(rows[:, None] / 97) * np.cos(columns / 61) + 1e-3 * noise).astype("f4")


def address() -> str:
    """This host's address on the interface that the lab shapes."""
    import psutil

    found = psutil.net_if_addrs()
    return next(one.address for one in found.get("eth0", found["lo"]) if one.family.name == "AF_INET")


@asynccontextmanager
async def cluster(comm: MPI.Intracomm, way: str) -> AsyncIterator[Any]:
    """Start a cluster on rank 0 and yield its client."""
    from distributed import Client, Scheduler

    import compcoll.dask

    async with Scheduler(host=address(), port=0, dashboard=False, dashboard_address=":0") as scheduler:
        await asyncio.to_thread(comm.bcast, scheduler.address)
        process = await _worker(scheduler.address, way)
        async with Client(scheduler.address, asynchronous=True) as user:
            await user.wait_for_workers(comm.size, timeout=_SECONDS)
            if way not in ("none", "lz4", "zstd"):
                await compcoll.dask.enable(user, way)
            yield user
            await user.shutdown()
        await process.wait()


async def measure(user: Any, n: int, chunk: int, seed: int) -> tuple[float, float]:
    """Times of ``x.T.dot(x)`` and of ``x + x.T``."""
    import dask.array as da
    from distributed import wait

    x = da.map_blocks(field, chunks=((chunk,) * (n // chunk),) * 2, dtype="f4", seed=seed)
    x = user.persist(x)
    await wait(x)
    times = []
    for made in (x.T.dot(x), x + x.T):
        start = perf_counter()
        done = user.persist(made)
        await wait(done)
        times.append(perf_counter() - start)
    return times[0], times[1]


async def measure_all(comm: MPI.Intracomm, ways: list[str], n: int, chunk: int, repeats: int) -> np.ndarray:
    """Times from `measure` by repetition and way; the ways take turns, each on data of its own."""
    async with AsyncExitStack() as stack:
        users = [await stack.enter_async_context(cluster(comm, way)) for way in ways]
        return np.array(
            [
                [await measure(user, n, chunk, seed * len(ways) + k) for k, user in enumerate(users)]
                for seed in range(repeats)
            ]
        )


async def _worker(scheduler: str, way: str) -> asyncio.subprocess.Process:
    """Start a worker process on this host."""
    compression = way if way in ("lz4", "zstd") else "none"
    names = {
        "DASK_DISTRIBUTED__COMM__COMPRESSION": compression if compression != "none" else "null",
        "DASK_DISTRIBUTED__WORKER__MEMORY__TARGET": "false",
        "DASK_DISTRIBUTED__WORKER__MEMORY__SPILL": "false",
        "OMP_NUM_THREADS": "1",
    }
    command = ["-m", "distributed.cli.dask_worker", scheduler, "--nthreads", "1", "--no-nanny"]
    command += ["--no-dashboard", "--host", address(), "--death-timeout", "60"]
    quiet = asyncio.subprocess.DEVNULL
    return await asyncio.create_subprocess_exec(
        sys.executable, *command, env=os.environ | names, stdout=quiet, stderr=quiet
    )


async def workers(comm: MPI.Intracomm, ways: list[str]) -> None:
    """Run this host's worker processes until the clients shut their clusters down."""
    processes = [await _worker(await asyncio.to_thread(comm.bcast, None), way) for way in ways]
    for process in processes:
        await process.wait()


@click.command(context_settings={"show_default": True})
@click.option("--n", default=2048, type=click.IntRange(1), help="Rows and columns, in float32.")
@click.option("--chunk", default=512, type=click.IntRange(1), help="Rows and columns of a chunk.")
@click.option("--ways", default=",".join(_WAYS), help="Compressions of distributed, or codecs.")
@click.option("--repeats", default=6, type=click.IntRange(2), help="Data of each; the first is not counted.")
def main(n: int, chunk: int, ways: str, repeats: int) -> None:
    """Print the times of x.T.dot(x) and x + x.T with each compression."""
    comm = MPI.COMM_WORLD
    logging.disable(logging.CRITICAL)
    if comm.rank:
        asyncio.run(workers(comm, ways.split(",")))
        return
    found = asyncio.run(measure_all(comm, ways.split(","), n, chunk, repeats))[1:]
    click.echo(f"x: {n} x {n} float32 in chunks of {chunk} x {chunk}, on {comm.size} workers")
    click.echo("| compression | `x.T.dot(x)` | `x + x.T` |\n| --- | --- | --- |")
    for way, (product, transposed) in zip(ways.split(","), np.median(found, axis=0), strict=True):
        click.echo(f"| {way} | {product:.2f} s | {transposed:.2f} s |")


if __name__ == "__main__":
    main()
