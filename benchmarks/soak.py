"""Many random collectives, each against plain MPI: no wrong result, and memory that stays flat.

Run it in the lab, where messages take their time::

    python -m benchmarks.netlab --hosts 2 --gbit 1 -- python -m benchmarks.soak --count 100000
"""

from __future__ import annotations

import resource
import sys
from time import perf_counter

import click
import numpy as np
from mpi4py import MPI
from rich.console import Console
from rich.progress import Progress

from compcoll import Comm

from .osu.output import as_json, describe

__all__ = ["main"]

CODECS = ("lossless", "bfp:bits=12", "zfp:rate=12", "szp:abs=1e-3", "int8", "mpc", "float")
DTYPES = ("f4", "f8", "i4")
#: Values that every rank draws its messages from.
POOL = 1 << 20


@click.command(context_settings={"show_default": True})
@click.option("--count", default=10_000, type=click.IntRange(1), help="Collectives.")
@click.option("--max-nbytes", default=256 << 10, type=click.IntRange(64), help="Largest message.")
@click.option("--seed", default=1, help="The same seed draws the same collectives.")
@click.option("--json", "json_path", type=click.Path(), help="Write the result to a file.")
def main(count: int, max_nbytes: int, seed: int, json_path: str | None) -> None:
    """Run random collectives of random sizes and compare each with plain MPI's result."""
    world = MPI.COMM_WORLD
    soak = Soak(world, max_nbytes, seed)
    wrong, memory, start = [], [], perf_counter()
    with Progress(
        console=Console(stderr=True), transient=True, disable=world.rank != 0 or not sys.stderr.isatty()
    ) as progress:
        for i in progress.track(range(count), description="collectives"):
            if problem := soak.one():
                wrong.append(f"{i}: {problem}")
            if i % max(count // 20, 1) == 0:
                memory.append(world.reduce(_resident(), MPI.MAX))
    wrong = [text for texts in world.allgather(wrong) for text in texts]
    about = describe(world, "soak", None, "f4")  # collective
    if world.rank == 0:
        seconds = perf_counter() - start
        # The first tenth fills the pools.
        settled = memory[len(memory) // 10 :]
        result = {
            "count": count,
            "wrong": len(wrong),
            "accelerated": soak.accelerated,
            "seconds": round(seconds, 1),
            "resident_mib": memory,
            "growth_mib": settled[-1] - settled[0],
        }
        print(
            f"{count} collectives, {soak.accelerated} of them compressed, in {seconds:.0f} s: "
            f"{len(wrong)} wrong"
        )
        print(
            f"resident memory of the largest rank: {settled[0]} to {settled[-1]} MiB, peak {max(memory)} MiB"
        )
        print("\n".join(wrong[:20]))
        if json_path:
            with open(json_path, "w") as file:
                command = " ".join(["python -m benchmarks.soak", *sys.argv[1:]])
                file.write(as_json({**about, "command": command, **result}))
    sys.exit(1 if wrong else 0)


class Soak:
    """Draws collectives, the same on all ranks, and compares."""

    def __init__(self, world: MPI.Intracomm, max_nbytes: int, seed: int):
        self.world, self.max_nbytes = world, max_nbytes
        self.rng = np.random.default_rng(seed)
        self.comms = [Comm(world, codec=spec, min_nbytes=256) for spec in CODECS]
        own = np.random.default_rng([seed, world.rank])
        noise = np.sin(np.arange(POOL) * 1e-3 + world.rank) + 0.01 * own.standard_normal(POOL)
        self.pools = {dtype: (noise * (1000 if dtype == "i4" else 1)).astype(dtype) for dtype in DTYPES}
        self.accelerated = 0

    def one(self) -> str:
        """One collective; what was wrong with it, or nothing."""
        rng, size = self.rng, self.world.size
        op = rng.choice(
            ["Alltoall", "Allgather", "Bcast", "Allreduce", "Reduce_scatter_block", "Gather", "Scatter"]
        )
        comm = self.comms[rng.integers(len(self.comms))]
        dtype, root = DTYPES[rng.integers(len(DTYPES))], int(rng.integers(size))
        n = int(self.max_nbytes ** rng.random()) // np.dtype(dtype).itemsize
        start = int(rng.integers(POOL - n * size)) if n * size < POOL else 0
        send = np.resize(self.pools[dtype][start : start + n * size], n * size)
        expected, result = (self._run(op, which, send, n, root) for which in (self.world, comm))
        report = comm.report
        self.accelerated += report.accelerated
        if result is None or result.tobytes() == expected.tobytes():
            return ""
        error = float(np.abs(result.astype("f8") - expected.astype("f8")).max())
        rounding = 0.0 if dtype == "i4" or "educe" not in op else 4 * size**2 * float(np.finfo(dtype).eps)
        if report.error_bound is not None and error <= report.error_bound + rounding:
            return ""
        return f"{op} of {n} {dtype} from root {root}: error {error}, promised {report.error_bound}; {report}"

    def _run(self, op: str, comm: MPI.Intracomm, send: np.ndarray, n: int, root: int) -> np.ndarray | None:
        size, at_root = comm.size, comm.rank == root
        if op == "Bcast":
            block = send[:n].copy()
            comm.Bcast(block, root)
            return block
        if op in ("Alltoall", "Allreduce"):
            recv = np.empty_like(send)
            getattr(comm, op)(send, recv)
            return recv
        if op == "Gather":
            recv = np.empty(n * size, send.dtype) if at_root else None
            comm.Gather(send[:n], recv, root)
            return recv
        recv = np.empty(n * size if op == "Allgather" else n, send.dtype)
        if op == "Scatter":
            comm.Scatter(send if at_root else None, recv, root)
        else:
            getattr(comm, op)(send[:n] if op == "Allgather" else send, recv)
        return recv


def _resident() -> int:
    """MiB of memory of this process now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() >> 20


if __name__ == "__main__":
    main()
