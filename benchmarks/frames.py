"""``python -m benchmarks.frames``: cost of large frames between two ranks if one rank is a little late.

Collectives of host arrays run with several chunk sizes. Beside each, MPI alone exchanges as many bytes both
ways in messages of 1 MiB, with receives posted first: MPI over TCP may carry larger messages in one direction
at a time. Rank 1 starts later than rank 0 by a part of a frame's time, with MPI alone too. Codec ``none``
stands for MPI alone with messages of a chunk's size.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import click
import numpy as np
from mpi4py import MPI

import compcoll
from compcoll.core.sizes import nbytes_of
from compcoll.policy import choices

from .osu.command import ended
from .osu.data import codec_list, source
from .osu.operations import OPERATIONS

WORLD = MPI.COMM_WORLD
#: Method of each operation, and its buffer's size as a multiple of the bytes for the other rank.
BUFFERS = {"alltoall": ("Alltoall", 2), "allgather": ("Allgather", 1), "allreduce": ("Allreduce", 2)}
PIECE_NBYTES = 1 << 20
F4 = np.dtype("f4")


@dataclass
class Way:
    """A timed call, its bytes on the wire in each direction, and the bytes of a frame."""

    call: Callable[[], object]
    wire: int
    frame: int


def exchange(buffers: np.ndarray, nbytes: int, piece: int) -> None:
    """Exchange ``nbytes`` each way by MPI alone, in messages of ``piece`` bytes."""
    parts = [slice(i, min(i + piece, nbytes)) for i in range(0, nbytes, piece)]
    requests = [WORLD.Irecv(buffers[1, part], 1 - WORLD.rank) for part in parts]
    requests += [WORLD.Isend(buffers[0, part], 1 - WORLD.rank) for part in parts]
    MPI.Request.Waitall(requests)


def way_of(op: str, spec: str, chunk: int, nbytes: int, buffers: np.ndarray) -> Way:
    """Make a way and compare its result with plain MPI's; ClickException if it is wrong."""
    if spec == "none":
        return Way(partial(exchange, buffers, nbytes, chunk), nbytes, chunk)
    values = source(None, F4, WORLD.rank)
    case = OPERATIONS[op](WORLD, values, BUFFERS[op][1] * nbytes // F4.itemsize)
    case.call(WORLD)
    expected = case.result.copy()
    values.spoil(case.result)
    comm = compcoll.Comm(WORLD, spec, policy={"min_nbytes": 0, "rule": [{"chunk_nbytes": chunk}]})
    case.call(comm)
    report = comm.report
    error = float(np.abs(case.result - expected).max())
    if WORLD.allreduce(not error <= report.error_bound + case.rounding, MPI.LOR):
        raise click.ClickException(f"{op}, {spec}, chunks of {chunk} bytes: the result is wrong")
    wire = WORLD.allreduce(report.wire_nbytes, MPI.MAX)
    return Way(partial(case.call, comm), wire, chunk * wire // report.raw_nbytes)


def seconds(call: Callable[[], object], late: float = 0.0) -> float:
    """Time from a barrier until the call has returned on both ranks; rank 1 starts ``late`` seconds later."""
    WORLD.Barrier()
    begin = MPI.Wtime()
    while WORLD.rank and MPI.Wtime() < begin + late:
        pass
    call()
    return WORLD.allreduce(MPI.Wtime() - begin, MPI.MAX)


def measure(ways: list[Way], buffers: np.ndarray, late: float, iters: int) -> np.ndarray:
    """Median seconds of each way and of MPI alone, measured in turns."""
    alone = [partial(exchange, buffers, way.wire, PIECE_NBYTES) for way in ways]
    # The first round warms up and measures the seconds per byte.
    lates = [late * way.frame * seconds(mpi) / way.wire for way, mpi in zip(ways, alone, strict=True)]
    calls = [*zip((way.call for way in ways), lates, strict=True), *zip(alone, lates, strict=True)]
    return np.median([[seconds(*call) for call in calls] for _ in range(iters)], axis=0)


@click.command(context_settings={"show_default": True})
@click.option("--operations", default="alltoall", help=f"Of {', '.join(BUFFERS)}.")
@click.option("--codec", default="lossless,bfp:bits=7,none", help="Codecs, separated by commas.")
@click.option("--chunks", default="8M,gpu", help="Bytes of chunks; gpu: as where all ranks have GPUs.")
@click.option("--nbytes", default="32M", help="Bytes for the other rank.")
@click.option("--late", default=0.1, help="Part of a frame's time that rank 1 is late.")
@click.option("--iters", default=9, type=click.IntRange(1), help="Calls of each kind.")
def command(operations: str, codec: str, chunks: str, nbytes: str, late: float, iters: int) -> None:
    """Print medians and their ratios to MPI alone as a Markdown table."""
    if WORLD.size != 2:
        raise click.UsageError(f"this takes 2 ranks, and there are {WORLD.size}")
    show = print if WORLD.rank == 0 else lambda *_, **__: None
    show("| operation | codec | chunk, MiB | frame, MiB | ms | MPI alone, ms | times MPI alone |")
    show("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    size = nbytes_of(nbytes)
    buffers = np.ones((2, 4 * size), np.uint8)
    for op in operations.split(","):
        for spec in codec_list(codec):
            made = compcoll.codec("raw" if spec == "none" else spec)
            default = choices.chunk_nbytes(BUFFERS[op][0], F4, size, 2, made, "network", gpus=True)
            sizes = [default if chunk == "gpu" else nbytes_of(chunk) for chunk in chunks.split(",")]
            ways = [way_of(op, spec, chunk, size, buffers) for chunk in sizes]
            times = measure(ways, buffers, late, iters).reshape(2, -1).T
            for chunk, way, (ours, alone) in zip(sizes, ways, times, strict=True):
                both = f"{chunk / 2**20:.2f} | {way.frame / 2**20:.2f} | {1e3 * ours:.1f} | {1e3 * alone:.1f}"
                show(f"| {op} | {spec} | {both} | {ours / alone:.2f} |", flush=True)


if __name__ == "__main__":
    sys.exit(ended(command, None, "python -m benchmarks.frames"))
