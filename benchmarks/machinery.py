"""Cost of messages that are not compressed: this library with codec `raw` beside plain MPI.

``mpiexec -n 2 python -m benchmarks.machinery``. The two are called in turns, in a new random order each
round, and the least time counts, measured on the slowest rank. A second part splits the cost of calls in
chunks of 4 KiB into a cost per call and a cost per chunk, beyond plain MPI's time for the same bytes and the
time to copy them into and out of frames. A third part has a Python thread count while the main thread waits
in a collective for a late rank. Nonblocking calls are waited for at once, so that their times show the cost
of a progress thread that has nothing to overlap with.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from threading import Event, Thread
from time import perf_counter, sleep

import click
import numpy as np
from mpi4py import MPI

import compcoll

from .osu.output import as_json, describe

SIZES = (64 << 10, 1 << 20, 8 << 20)
SMALL_CHUNK = 4 << 10
#: Numbers of chunks of the calls in the second part.
CHUNKS = (1, 2, 4, 8, 16, 32, 64, 128)
SECONDS = 1.0
#: Delay of a rank at a collective while others count, and the number of repeats.
LATE, LATE_ROUNDS = 0.15, 20

Operation = Callable[[MPI.Intracomm], object]
#: Requests that have to be freed.
_prepared: list[MPI.Prequest] = []


def operations(world: MPI.Intracomm, nbytes: int) -> dict[str, Operation]:
    """The timed calls; ``nbytes`` is the size of a peer's block, or of a whole buffer."""
    n = nbytes // 4
    send, recv = np.ones(n * world.size, np.float32), np.zeros(n * world.size, np.float32)
    one, total = np.ones(n, np.float32), np.zeros(n, np.float32)
    before, behind = (world.rank - 1) % world.size, (world.rank + 1) % world.size
    prepared: dict[int, MPI.Prequest] = {}

    def start(comm: MPI.Intracomm) -> None:
        if id(comm) not in prepared:
            prepared[id(comm)] = comm.Alltoall_init(send, recv)
            _prepared.append(prepared[id(comm)])
        prepared[id(comm)].Start()
        prepared[id(comm)].Wait()

    return {
        "Alltoall": lambda comm: comm.Alltoall(send, recv),
        "Bcast": lambda comm: comm.Bcast(one),
        "Allreduce": lambda comm: comm.Allreduce(one, total),
        "Ialltoall": lambda comm: comm.Ialltoall(send, recv).Wait(),
        "Alltoall_init": start,
        "Isend": lambda comm: MPI.Request.Waitall([comm.Irecv(total, before), comm.Isend(one, behind)]),
    }


def least(world: MPI.Intracomm, calls: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Least time of each call, on the slowest rank; they take turns for ``seconds`` in all."""
    names, rng = list(calls), np.random.default_rng(0)
    begun, times = perf_counter(), []
    rounds = 3
    while len(times) < rounds:
        row = np.empty(len(names))
        for i in rng.permutation(len(names)):
            world.Barrier()
            start = perf_counter()
            calls[names[i]]()
            row[i] = perf_counter() - start
        times.append(row)
        if len(times) == 3:
            each = (perf_counter() - begun) / 3
            rounds = world.bcast(int(min(max(seconds / each, 25), 4000)))
    slowest = np.array(times)
    world.Allreduce(MPI.IN_PLACE, slowest, MPI.MAX)
    return dict(zip(names, slowest.min(axis=0).tolist(), strict=True))


def whole_calls(world: MPI.Intracomm, ours: compcoll.Comm) -> list[dict]:
    """Rows with the times of whole calls."""
    rows = []
    for nbytes in SIZES:
        for op, call in operations(world, nbytes).items():
            found = least(world, {"mpi": lambda: call(world), "raw": lambda: call(ours)}, SECONDS)  # noqa: B023
            rows.append({"op": op, "nbytes": nbytes, **found, "ratio": found["raw"] / found["mpi"]})
    while _prepared:
        _prepared.pop().Free()
    return rows


def taken_apart(world: MPI.Intracomm) -> dict[str, float]:
    """Seconds that each call and each chunk costs beyond plain MPI and copying."""
    rule = {"codec": "raw", "min_nbytes": 0, "rule": [{"chunk_nbytes": SMALL_CHUNK}]}
    ours = compcoll.Comm(world, policy=rule)
    beyond = []
    for n in CHUNKS:
        call = operations(world, n * SMALL_CHUNK)["Alltoall"]
        source, frame = np.ones(n * SMALL_CHUNK, np.uint8), np.ones(n * SMALL_CHUNK, np.uint8)
        found = least(
            world,
            {
                "mpi": lambda: call(world),  # noqa: B023
                "raw": lambda: call(ours),  # noqa: B023
                "copy": lambda: (np.copyto(frame, source), np.copyto(source, frame)),  # noqa: B023
            },
            SECONDS / 2,
        )
        peers = world.size - 1
        beyond.append((n * peers, found["raw"] - found["mpi"] - peers * found["copy"]))
    chunks, seconds = np.array(beyond).T
    per_chunk, per_call = np.polyfit(chunks, seconds, 1, w=1 / chunks**0.5)
    return {"call": float(per_call), "chunk": float(per_chunk)}


def counted(during: Callable[[], object]) -> float:
    """How far a thread counts per second while the main thread runs ``during``."""
    stopped, count = Event(), [0]

    def work() -> None:
        while not stopped.is_set():
            for _ in range(1000):
                count[0] += 1

    thread = Thread(target=work)
    thread.start()
    start = perf_counter()
    during()
    seconds = perf_counter() - start
    stopped.set()
    thread.join()
    return count[0] / seconds


def counting(world: MPI.Intracomm) -> float:
    """Best speed of a thread while the main thread waits in a Bcast, over that while it sleeps."""
    ours = compcoll.Comm(world, codec="raw", min_nbytes=0)
    values = np.ones(1 << 16, np.float32)
    ours.Bcast(values, world.size - 1)
    waiting, sleeping = [], []
    for _ in range(LATE_ROUNDS):
        world.Barrier()
        if world.rank:
            sleep(2 * LATE)
            ours.Bcast(values, world.size - 1)
        else:
            sleeping.append(counted(lambda: sleep(LATE)))
            waiting.append(counted(lambda: ours.Bcast(values, world.size - 1)))
    return max(waiting) / max(sleeping) if waiting else 0.0


@click.command()
@click.option("--json", "json_path", type=click.Path(), help="Write the figures to a file.")
def main(json_path: str | None) -> None:
    """Time this library without compression beside plain MPI."""
    world = MPI.COMM_WORLD
    if world.size < 2:
        raise click.UsageError("a single rank sends nothing: mpiexec -n 2 python -m benchmarks.machinery")
    rows = whole_calls(world, compcoll.Comm(world, codec="raw", min_nbytes=0))
    costs = taken_apart(world)
    share = counting(world)
    about = describe(world, "machinery", None, "f4")
    if world.rank:
        return
    click.echo(f"{world.size} ranks; least times in microseconds")
    click.echo(f"{'':14}{'bytes':>10}{'plain MPI':>12}{'raw':>12}{'ratio':>8}")
    for row in rows:
        times = f"{1e6 * row['mpi']:12.1f}{1e6 * row['raw']:12.1f}{row['ratio']:8.2f}"
        click.echo(f"{row['op']:14}{row['nbytes']:10d}{times}")
    click.echo(
        f"in chunks of {SMALL_CHUNK} bytes, beyond plain MPI and copying: "
        f"{1e6 * costs['call']:.1f} us a call, {1e6 * costs['chunk']:.2f} us a chunk"
    )
    click.echo(f"a thread counts at {100 * share:.0f} % of its speed while the main thread waits in a Bcast")
    if json_path:
        command = " ".join(["python -m benchmarks.machinery", *sys.argv[1:]])
        with open(json_path, "w") as file:
            file.write(
                as_json({**about, "command": command, "rows": rows, "beyond": costs, "counting": share})
            )


if __name__ == "__main__":
    main()
