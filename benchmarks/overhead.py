"""Cost of a call that is too small to be compressed, beside mpi4py's own.

``mpiexec -n 2 python -m benchmarks.overhead``. Both are called in turns, so that noise meets both alike.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from statistics import median
from time import perf_counter

import click
import numpy as np
from mpi4py import MPI

import compcoll


def operations(comm: MPI.Comm, n: int) -> dict[str, Callable[[MPI.Intracomm], None]]:
    """The calls, on ``n`` float32 values for each rank."""
    size, rank = comm.size, comm.rank
    small, large, out = (np.ones(k, "f4") for k in (n, n * size, n * size))
    one = np.ones(n, "f4")
    counts, before, behind = [n] * size, (rank - 1) % size, (rank + 1) % size
    return {
        "Bcast": lambda c: c.Bcast(small),
        "Allreduce": lambda c: c.Allreduce(small, one),
        "Reduce": lambda c: c.Reduce(small, one),
        "Alltoall": lambda c: c.Alltoall(large, out),
        "Alltoallv": lambda c: c.Alltoallv([large, counts], [out, counts]),
        "Allgather": lambda c: c.Allgather(small, out),
        "Allgatherv": lambda c: c.Allgatherv(small, [out, counts]),
        "Gather": lambda c: c.Gather(small, out),
        "Gatherv": lambda c: c.Gatherv(small, [out, counts]),
        "Scatter": lambda c: c.Scatter(large, one),
        "Scatterv": lambda c: c.Scatterv([large, counts], one),
        "Reduce_scatter": lambda c: c.Reduce_scatter(large, one, counts),
        "Reduce_scatter_block": lambda c: c.Reduce_scatter_block(large, one),
        "Sendrecv": lambda c: c.Sendrecv(small, behind, 0, one, before, 0),
        "Send, Recv": lambda c: pingpong(c, small, one),
    }


def pingpong(comm: MPI.Intracomm, send: np.ndarray, recv: np.ndarray) -> None:
    """There and back between the first two ranks."""
    if comm.size == 1 or comm.Get_rank() > 1:
        return
    if comm.Get_rank() == 0:
        comm.Send(send, 1)
        comm.Recv(recv, 1)
    else:
        comm.Recv(recv, 0)
        comm.Send(send, 0)


def seconds(call: Callable, comm: MPI.Intracomm, repeats: int) -> float:
    """Mean time of a call over a short loop."""
    start = perf_counter()
    for _ in range(repeats):
        call(comm)
    return (perf_counter() - start) / repeats


def measure(n: int, samples: int, repeats: int) -> list[dict[str, object]]:
    """Medians of both over interleaved samples, in seconds; the largest of all ranks."""
    plain = MPI.COMM_WORLD.Dup()
    ours = compcoll.Comm(plain)
    rows: list[dict[str, object]] = []
    for name, call in operations(plain, n).items():
        times: list[tuple[float, float]] = []
        for _ in range(samples + 1):
            plain.Barrier()
            first = seconds(call, plain, repeats)
            plain.Barrier()
            times.append((first, seconds(call, ours, repeats)))
        mine = [median(t[i] for t in times[1:]) for i in (0, 1)]
        difference = median(b - a for a, b in times[1:])
        worst = [plain.allreduce(x, MPI.MAX) for x in (*mine, difference)]
        rows.append({"op": name, "mpi4py": worst[0], "compcoll": worst[1], "difference": worst[2]})
    plain.Free()
    return rows


@click.command()
@click.option("--n", default=16, show_default=True, help="float32 values for each rank")
@click.option("--samples", default=31, show_default=True, help="interleaved samples of each call")
@click.option("--repeats", default=200, show_default=True, help="calls in a sample")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def main(n: int, samples: int, repeats: int, as_json: bool) -> None:
    """Compare the time of small calls through compcoll with mpi4py's own."""
    rows = measure(n, samples, repeats)
    if MPI.COMM_WORLD.rank:
        return
    if as_json:
        click.echo(json.dumps({"ranks": MPI.COMM_WORLD.size, "nbytes": 4 * n, "rows": rows}, indent=2))
        return
    click.echo(f"{MPI.COMM_WORLD.size} ranks, {4 * n} bytes for each; medians in microseconds")
    click.echo(f"{'':22}{'mpi4py':>10}{'compcoll':>10}{'more':>10}")
    for row in rows:
        times = "".join(f"{1e6 * row[key]:10.2f}" for key in ("mpi4py", "compcoll", "difference"))
        click.echo(f"{row['op']:22}{times}")


if __name__ == "__main__":
    main()
