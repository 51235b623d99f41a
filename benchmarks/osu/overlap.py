"""Nonblocking collectives beside a computation, as in OSU's benchmarks.

``python -m benchmarks.osu ialltoall [OPTIONS]``, or ``compcoll bench ialltoall``.

First a collective is timed alone: started and waited for at once. Then it is started, a computation runs that
takes as long alone, and the collective is waited for. The overlap is the part of the collective's time that
the computation hides: ``100 (1 - (total - compute) / alone)`` percent, at least 0, where ``compute`` is the
time that the computation took there, as in OSU's benchmarks. Two more columns show the slowdown of the
computation, compared with the same computation alone, and the processor time of the thread that progresses
the call, which slows nothing if there is a spare core. Times are means over ranks, and medians over calls.
Plain MPI and every codec take turns in one loop.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import process_time, thread_time
from typing import Any

import click
import numpy as np
from mpi4py import MPI

from .command import SIZES, communicators, data_options, ended, look_first
from .data import codec_list, size_list, source
from .operations import COLLECTIVES, NONBLOCKING, Case
from .output import as_json, describe, heading

__all__ = ["NONBLOCKING", "Row", "main", "measure"]

_COLUMNS = (
    f"{'bytes':>11} {'codec':<20} {'alone us':>12} {'compute us':>12} {'total us':>12} {'overlap %':>10} "
    f"{'slowed %':>9} {'cpu us':>10}"
)
#: Rows and columns of the computation's matrix, which fits into a core's own cache.
_EDGE = 96


@dataclass(frozen=True)
class Row:
    """Figures of one size and one communicator; equal on all ranks.

    Attributes
    ----------
    nbytes : int
        Size of a message.
    name : str
        ``"mpi"`` or the spec of the codec.
    iters : int
    alone, compute, total : float
        Seconds of the call waited for at once, of the computation without a call, and of both together.
    beside : float
        Seconds of the computation while the call is in flight.
    overlap, slowed : float
        Percent.
    processor_seconds : float
        Processor time of all threads but the computing one, from the start of the call to its completion.
    accelerated : bool
        False if the call was passed to MPI unchanged.
    sound : bool
        True if the nonblocking and the blocking call give equal results.
    """

    nbytes: int
    name: str
    iters: int
    alone: float
    compute: float
    total: float
    beside: float
    overlap: float
    slowed: float
    processor_seconds: float
    accelerated: bool
    sound: bool


class _Begun:
    """A communicator that starts each collective as a nonblocking one and keeps the last `request`."""

    def __init__(self, comm: MPI.Intracomm):
        self._comm = comm
        self.request = MPI.REQUEST_NULL

    def __getattr__(self, name: str) -> Callable:
        method = getattr(self._comm, f"I{name.lower()}")

        def begin(*args, **kwargs) -> None:
            self.request = method(*args, **kwargs)

        return begin


class _Work:
    """A computation of equal steps that stays in this core's registers and cache."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self._matrix, self._vector = rng.random((_EDGE, _EDGE)), rng.random(_EDGE)
        self._product = np.empty(_EDGE)

    def __call__(self, steps: int) -> None:
        for _ in range(steps):
            np.dot(self._matrix, self._vector, out=self._product)

    def seconds_per_step(self) -> float:
        """Least time of a step, over several tries."""
        times = []
        for _ in range(20):
            begin = MPI.Wtime()
            self(200)
            times.append((MPI.Wtime() - begin) / 200)
        return min(times)


def measure(
    op: str,
    comms: dict[str, Any],
    values: Any,
    nbytes: int,
    *,
    warmup: int = 2,
    iters: int = 20,
    max_seconds: float = 10.0,
) -> list[Row]:
    """Measure one size on all communicators; collective. The parameters are those of `run_size`."""
    world = next(iter(comms.values()))
    n = max(1, nbytes // values.dtype.itemsize)
    case = COLLECTIVES[op[1:]](world, values, n)
    work = _Work()
    step = world.allreduce(work.seconds_per_step()) / world.size
    begun = {name: _Begun(comm) for name, comm in comms.items()}
    order = np.random.default_rng(len(comms))  # the same on all ranks

    def rounds(count: int, once: Callable[[str], tuple[float, ...]]) -> dict[str, np.ndarray]:
        """Times on each communicator: means over the ranks, medians over `count` calls."""
        times: dict[str, list] = {name: [] for name in comms}
        for _ in range(count):
            for name in order.permutation(list(comms)):
                case.reset()
                world.Barrier()
                times[name].append(once(name))
        found = {}
        for name, series in times.items():
            own = np.array(series)
            world.Allreduce(MPI.IN_PLACE, own, MPI.SUM)
            found[name] = np.median(own / world.size, axis=0)
        return found

    def alone(name: str) -> tuple[float, ...]:
        start = MPI.Wtime()
        case.call(begun[name])
        begun[name].request.Wait()
        return (MPI.Wtime() - start,)

    first = rounds(max(1, warmup), alone)
    expected = 4 * sum(float(times[0]) for times in first.values())
    count = min(iters, max(3, int(max_seconds / expected)))
    pure = rounds(count, alone)
    steps = {name: max(1, round(float(times[0]) / step)) for name, times in pure.items()}

    def compute(name: str) -> tuple[float, ...]:
        start = MPI.Wtime()
        work(steps[name])
        return (MPI.Wtime() - start,)

    def together(name: str) -> tuple[float, ...]:
        others = process_time() - thread_time()
        start = MPI.Wtime()
        case.call(begun[name])
        begins = MPI.Wtime()
        work(steps[name])
        ends = MPI.Wtime()
        begun[name].request.Wait()
        end = MPI.Wtime()
        return end - start, ends - begins, process_time() - thread_time() - others

    computed = rounds(count, compute)
    both = rounds(count, together)
    rows = []
    for name in comms:
        total, beside, busy = map(float, both[name])
        own, without = float(pure[name][0]), float(computed[name][0])
        overlap = max(0.0, 100 * (1 - (total - beside) / own))
        slowed = 100 * (beside / without - 1)
        accelerated, sound = _check(case, comms[name], begun[name], world, values)
        times = own, without, total, beside, overlap, slowed, busy
        rows.append(Row(case.rounded(n) * values.dtype.itemsize, name, count, *times, accelerated, sound))
    return rows


def _check(case: Case, comm: Any, begun: _Begun, world: MPI.Intracomm, values: Any) -> tuple[bool, bool]:
    """Two flags: the call was accelerated on any rank; the nonblocking and blocking results are equal."""
    before = getattr(comm, "calls_accelerated", 0)
    values.spoil(case.result)
    case.reset()
    case.call(begun)
    begun.request.Wait()
    accelerated = getattr(comm, "calls_accelerated", 0) > before
    result = values.host(case.result).copy()
    values.spoil(case.result)
    case.reset()
    case.call(comm)
    expected = values.host(case.result)
    same = result.tobytes() == expected.tobytes()
    if not same and case.rounding:  # sums of three or more values depend on the order
        same = bool(np.abs(result - expected).max() <= case.rounding)
    return world.allreduce(accelerated, MPI.LOR), world.allreduce(same, MPI.LAND)


def line(row: Row) -> str:
    """One row as text."""
    times = " ".join(f"{1e6 * value:12.1f}" for value in (row.alone, row.compute, row.total))
    mark = "" if row.accelerated or row.name == "mpi" else "  unchanged"
    mark += "" if row.sound else "  WRONG"
    return (
        f"{row.nbytes:11d} {row.name:<20} {times} {row.overlap:10.1f} {row.slowed:9.1f} "
        f"{1e6 * row.processor_seconds:10.1f}{mark}"
    )


def main(op: str, argv: list[str] | None = None, name: str = "python -m benchmarks.osu") -> None:
    """Run from the command line and exit: 0, 1 if a result was wrong, 2 for wrong options."""
    sys.exit(ended(_command, [op, *(sys.argv[1:] if argv is None else argv)], name))


@click.command(context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.argument("op", type=click.Choice(NONBLOCKING))
@click.option("--codec", "codecs", default="lossless", help="Codecs, separated by commas; none: MPI alone.")
@click.option("--sizes", default="64K:4M:4", help=SIZES)
@click.option("--iters", default=20, type=click.IntRange(1), help="Calls of each codec and size.")
@click.option("--warmup", default=2, type=click.IntRange(1), help="Untimed calls before the measurement.")
@click.option("--max-seconds", default=10.0, help="Fewer calls if a size takes longer.")
@data_options
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), help="Write the measurements to a file."
)
def _command(op, codecs, sizes, iters, warmup, max_seconds, data, dtype, json_path) -> bool:
    """Time a nonblocking collective beside a computation, compressed and by plain MPI."""
    world = MPI.COMM_WORLD
    look_first(world, json_path)
    try:
        values = source(data, dtype, world.rank)
        nbytes = size_list(sizes)
        comms = communicators(codec_list(codecs), None, values)
    except (ImportError, TypeError, ValueError) as error:
        raise click.UsageError(str(error)) from None
    about = describe(world, op, data, values.dtype)
    if world.rank == 0:
        print("\n".join([*heading(about).split("\n")[:-1], _COLUMNS]), flush=True)
    rows = []
    for size in nbytes:
        new = measure(op, comms, values, size, warmup=warmup, iters=iters, max_seconds=max_seconds)
        rows += new
        if world.rank == 0:
            print("\n".join(map(line, new)), flush=True)
    if world.rank == 0 and json_path:
        json_path.write_text(as_json({**about, "rows": [asdict(row) for row in rows]}))
    return all(row.sound for row in rows)
