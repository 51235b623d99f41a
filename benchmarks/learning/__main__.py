"""The command: every task on plain MPI and with every codec, in turns."""

from __future__ import annotations

import sys
from typing import Any

import click
import numpy as np
from mpi4py import MPI

from ..osu.command import ended
from ..osu.data import codec_list
from ..osu.output import as_json, environment
from .digits import Digits, digits
from .tasks import TASKS

__all__ = ["measure"]


def measure(task: str, comms: dict[str, Any], data: Digits, iters: int) -> list[dict]:
    """Times and outcomes on every communicator; collective.

    Returns
    -------
    list of dict
        A row for each: the median of the slowest rank's seconds, plain MPI's over these, how right the
        outcome is, and whether anything was large enough to be compressed.
    """
    world = next(iter(comms.values()))
    order = np.random.default_rng(len(comms))  # the same on all ranks
    seconds: dict[str, list[float]] = {name: [] for name in comms}
    accuracy = {name: TASKS[task](comm, data) for name, comm in comms.items()}
    before = {name: getattr(comm, "calls_accelerated", 0) for name, comm in comms.items()}
    for _ in range(iters):
        for name in order.permutation(list(comms)):
            world.Barrier()
            start = MPI.Wtime()
            TASKS[task](comms[name], data)
            seconds[name].append(world.allreduce(MPI.Wtime() - start, MPI.MAX))
    medians = {name: float(np.median(times)) for name, times in seconds.items()}
    plain = next(iter(medians.values()))
    return [
        {
            "task": task,
            "name": name,
            "seconds": medians[name],
            "speedup": plain / medians[name],
            "accuracy": accuracy[name],
            "iters": iters,
            "accelerated": world.allreduce(getattr(comm, "calls_accelerated", 0) > before[name], MPI.LOR),
        }
        for name, comm in comms.items()
    ]


def _mark(row: dict) -> str:
    return "" if row["accelerated"] or row["name"] == "mpi" else "  unchanged: all is too small"


@click.command(context_settings={"show_default": True})
@click.option("--task", "tasks", multiple=True, type=click.Choice(list(TASKS)), help="Which. [default: all]")
@click.option("--codec", "codecs", default="lossless,bfp:bits=14,bfp:bits=7", help="Separated by commas.")
@click.option("--copies", default=8, type=click.IntRange(1), help="How often each image to learn from comes.")
@click.option("--iters", default=5, type=click.IntRange(1), help="Runs of each task and codec.")
@click.option("--json", "json_path", type=click.Path(), help="Write the measurements to a file.")
def _command(tasks, codecs, copies, iters, json_path) -> bool:
    """Time what is learnt of handwritten digits over plain MPI and compressed, and how right it is."""
    from compcoll import Comm

    world = MPI.COMM_WORLD
    try:
        data = digits(copies)
        comms: dict[str, Any] = {"mpi": world}
        comms |= {spec: Comm(world, codec=spec) for spec in codec_list(codecs)}
    except ImportError as error:
        raise click.UsageError(f"{error}; the extra bench-ml brings it") from None
    except (TypeError, ValueError) as error:
        raise click.UsageError(str(error)) from None
    if world.rank == 0:
        print(f"# {len(data.images)} images to learn from, {len(data.tests)} to test, {world.size} ranks")
        print(f"{'task':<12} {'codec':<20} {'ms':>10} {'speedup':>8} {'accuracy':>10}", flush=True)
    rows = []
    for task in tasks or TASKS:
        new = measure(task, comms, data, iters)
        rows += new
        if world.rank == 0:
            print(
                "\n".join(
                    f"{row['task']:<12} {row['name']:<20} {1e3 * row['seconds']:10.1f} {row['speedup']:8.2f} "
                    f"{row['accuracy']:10.6f}{_mark(row)}"
                    for row in new
                ),
                flush=True,
            )
    if json_path and world.rank == 0:
        about = {"operation": "learning", "ranks": world.size, "copies": copies, **environment()}
        with open(json_path, "w") as file:
            file.write(as_json({**about, "rows": rows}))
    return True


if __name__ == "__main__":
    sys.exit(ended(_command, None, "python -m benchmarks.learning"))
