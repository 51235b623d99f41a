"""Dask's workers on two hosts: ``python -m benchmarks.netlab --gbit 1 -- python -m benchmarks.dask_arrays``.

Each way of sending arrays has a cluster of its own: a scheduler beside the client in the process of rank 0,
and a worker process on each host. Data are a smooth field with noise, made on the workers before each time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
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
    """This host's, on the port that the lab shapes."""
    import psutil

    found = psutil.net_if_addrs()
    return next(one.address for one in found.get("eth0", found["lo"]) if one.family.name == "AF_INET")


async def client(comm: MPI.Intracomm, way: str, n: int, chunk: int, repeats: int) -> tuple[list, list, Any]:
    """The times of a product and of a transpose added, and the last product, of a cluster by rank 0."""
    import dask.array as da
    from distributed import Client, Scheduler, wait

    import compcoll.dask

    async with Scheduler(host=address(), port=0, dashboard=False) as scheduler:
        await asyncio.to_thread(comm.bcast, scheduler.address)
        process = await _worker(scheduler.address, way)
        async with Client(scheduler.address, asynchronous=True) as user:
            await user.wait_for_workers(comm.size, timeout=_SECONDS)
            if way not in ("none", "lz4", "zstd"):
                await compcoll.dask.enable(user, way)
            products, sums, result = [], [], None
            for seed in range(repeats):
                x = da.map_blocks(field, chunks=((chunk,) * (n // chunk),) * 2, dtype="f4", seed=seed)
                x = user.persist(x)
                await wait(x)
                for times, made in ((products, x.T.dot(x)), (sums, x + x.T)):
                    start = perf_counter()
                    done = user.persist(made)
                    await wait(done)
                    times.append(perf_counter() - start)
                    if times is products:
                        result = await user.compute(done.sum())
                    del done
                del x
            await user.shutdown()
        await process.wait()
    return products, sums, result


async def _worker(scheduler: str, way: str) -> asyncio.subprocess.Process:
    """A worker process of this host."""
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


async def worker(comm: MPI.Intracomm, way: str) -> None:
    """A worker process, until the client shuts the cluster down."""
    scheduler = await asyncio.to_thread(comm.bcast, None)
    process = await _worker(scheduler, way)
    await asyncio.wait_for(process.wait(), _SECONDS)


@click.command(context_settings={"show_default": True})
@click.option("--n", default=4096, type=click.IntRange(1), help="Rows and columns, in float32.")
@click.option("--chunk", default=1024, type=click.IntRange(1), help="Rows and columns of a chunk.")
@click.option("--ways", default=",".join(_WAYS), help="Compressions of distributed, or codecs.")
@click.option("--repeats", default=4, type=click.IntRange(2), help="Data of each; the first is not counted.")
def main(n: int, chunk: int, ways: str, repeats: int) -> None:
    """Print the times of x.T.dot(x) and x + x.T with each compression."""
    comm = MPI.COMM_WORLD
    logging.disable(logging.CRITICAL)
    if not comm.rank:
        click.echo(f"x: {n} x {n} float32 in chunks of {chunk} x {chunk}, on {comm.size} workers")
        click.echo(
            "| compression | `x.T.dot(x)` | `x + x.T` | difference of the sum |\n| --- | --- | --- | --- |"
        )
    first = None
    for way in ways.split(","):
        comm.Barrier()
        if comm.rank:
            asyncio.run(worker(comm, way))
            continue
        products, sums, result = asyncio.run(client(comm, way, n, chunk, repeats))
        first = result if first is None else first
        times = " | ".join(f"{np.median(times[1:]):.2f} s" for times in (products, sums))
        click.echo(f"| {way} | {times} | {abs(result - first) / abs(first):.1g} |")


if __name__ == "__main__":
    main()
