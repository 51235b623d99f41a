"""The harness of the benchmarks, in the layout of OSU's: one row per size.

Plain MPI and every codec run side by side in one loop, call by call and each round in another random order,
so that whatever disturbs the machine, and what a call leaves to the next one, disturbs them alike. A call
begins after a barrier; its time is the maximum over the ranks. The results are compared with plain MPI's
after the loop, never inside, when the choice between ways to run has been made.

GB/s are effective ones: bytes that the busiest rank has to move in any algorithm, uncompressed, per
second of the median call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from time import process_time

import numpy as np
from mpi4py import MPI

from .data import Source
from .operations import Case, Operation

__all__ = ["CONTROL", "Row", "run_size"]

#: The name of a second plain MPI.
CONTROL = "mpi again"
MIN_ITERS = 3
#: Parts of a loop whose speed-ups tell how certain that of all its calls is.
BATCHES = 10


@dataclass(frozen=True)
class Row:
    """Figures of one size and one communicator; equal on all ranks.

    Attributes
    ----------
    nbytes : int
        Size of the buffer that a rank passes; of Alltoall all of it, of which each rank gets a part.
    name : str
        ``"mpi"`` or the spec of the codec.
    iters : int
    seconds : dict of str to float
        ``min``, ``median``, ``mean``, ``max`` and ``midmean``, the interquartile mean, over the calls of the
        slowest rank's time.
    processor_seconds : float
        What a call takes of processors on the rank where it takes most, all its threads together; the median.
    gbytes_per_s : float
    speedup : float
        Median time of plain MPI over this one's.
    spread : float or None
        Two standard errors of the speed-up, from those of the loop's parts; None where there are too few.
    accelerated : bool
        False where the call went to MPI unchanged.
    reason : str
        Why, as rank 0 reports it.
    ratio : float
        Uncompressed bytes per byte on the wire, over all ranks.
    error : float
        Largest absolute difference from plain MPI's result; inf where one of them is NaN.
    bound : float or None
        The error that was promised, with that of the additions of both sums; None without a promise.
    sound : bool
        Whether the promise was kept; a bound of 0 means equal bits, up to the order of additions.
    """

    nbytes: int
    name: str
    iters: int
    seconds: dict[str, float]
    processor_seconds: float
    gbytes_per_s: float
    speedup: float
    spread: float | None
    accelerated: bool
    reason: str
    ratio: float
    error: float
    bound: float | None
    sound: bool

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def run_size(
    operation: Operation,
    comms: dict[str, MPI.Comm],
    values: Source,
    nbytes: int,
    *,
    warmup: int = 2,
    iters: int = 20,
    min_seconds: float = 0.0,
    max_seconds: float = 10.0,
    in_a_row: int = 1,
) -> list[Row]:
    """Measure one size on all communicators; collective.

    Parameters
    ----------
    operation : callable
        One of `OPERATIONS`.
    comms : dict of str to MPI.Comm
        By name; the first is the plain one that the others are compared with.
    values : Source
    nbytes : int
        Size of the buffer that a rank passes, rounded down to whole values, at least one for each message.
    warmup, iters : int
        Calls before and in the measurement.
    min_seconds : float
        More calls where they take less.
    max_seconds : float
        Fewer calls, but at least 3, where they would take longer.
    in_a_row : int
        Calls without a barrier between them, which are timed together.
    """
    world = next(iter(comms.values()))
    n = max(1, nbytes // values.dtype.itemsize)
    case = operation(world, values, n)
    if in_a_row > 1:
        case = replace(case, call=_repeated(case.call, in_a_row), repeats=case.repeats * in_a_row)
    times, processors = (
        _time(
            case, list(comms.values()), world, values.arrays.wait, warmup, iters, (min_seconds, max_seconds)
        )
        / case.repeats
    )
    checks = _check(case, comms, world, values)
    medians = np.median(times, axis=1)
    rows = []
    for name, series, busy, median, check in zip(comms, times, processors, medians, checks, strict=True):
        seconds = {
            "min": series.min(),
            "median": median,
            "mean": series.mean(),
            "max": series.max(),
            "midmean": midmean(series),
        }
        seconds = {key: float(value) for key, value in seconds.items()}
        rate, speedup = float(case.moved / median / 1e9), float(medians[0] / median)
        spread = _spread(times[0], series)
        measured = len(series), seconds, float(np.median(busy)), rate, speedup, spread
        rows.append(Row(case.rounded(n) * values.dtype.itemsize, name, *measured, *check))
    return rows


def _repeated(call: Callable, count: int) -> Callable:
    def calls(comm: MPI.Comm) -> None:
        for _ in range(count):
            call(comm)

    return calls


def _time(
    case: Case,
    comms: list[MPI.Comm],
    world: MPI.Comm,
    wait: Callable | None,
    warmup: int,
    iters: int,
    limits: tuple[float, float],
) -> np.ndarray:
    """Times of calls on each communicator, of the slowest rank, and processor times, of the busiest.

    Shape (2, communicators, calls), seconds.
    """
    order = np.random.default_rng(len(comms))  # the same on all ranks

    def rounds(count: int) -> np.ndarray:
        times = np.empty((2, len(comms), count))
        for i in range(count):
            for j in order.permutation(len(comms)):
                case.reset()
                world.Barrier()
                busy, begin = process_time(), MPI.Wtime()
                case.call(comms[j])
                if wait is not None:
                    wait()
                times[:, j, i] = MPI.Wtime() - begin, process_time() - busy
        world.Allreduce(MPI.IN_PLACE, times, MPI.MAX)
        return times

    expected = rounds(max(1, warmup))[0].min(axis=1).sum()
    least, most = (int(seconds / expected) for seconds in limits)
    return rounds(min(max(iters, least), max(MIN_ITERS, most)))


def _spread(plain: np.ndarray, own: np.ndarray) -> float | None:
    """Two standard errors of the ratio of medians; None where there are too few calls to tell."""
    batches = min(BATCHES, len(own) // MIN_ITERS)
    if batches < 2:
        return None if own is not plain else 0.0
    pairs = zip(np.array_split(plain, batches), np.array_split(own, batches), strict=True)
    ratios = [np.median(a) / np.median(b) for a, b in pairs]
    return float(2 * np.std(ratios, ddof=1) / np.sqrt(batches))


def _check(case: Case, comms: dict[str, MPI.Comm], world: MPI.Comm, values: Source) -> list[tuple]:
    """The fields of `Row` from `accelerated` on, of each communicator."""
    checks = []
    expected = None
    for comm in comms.values():
        # Values of the call before must not pass for this one's.
        values.spoil(case.result)
        case.reset()
        before = getattr(comm, "report", None)
        case.call(comm)
        getattr(comm, "settle", lambda: None)()
        report = getattr(comm, "report", None)
        result = values.host(case.result)
        expected = result.copy() if expected is None else expected
        # Calls that a communicator does not know leave the report of an earlier one.
        accelerated, reason, ratio, bound = _reported(None if report is before else report, world)
        error, same = _difference(result, expected, world)
        # Two values have but one sum; three or more have one for each order of additions.
        exact = same or (world.size > 2 and 0.0 < error <= case.rounding)
        sound = exact if bound == 0.0 else bound is None or error <= bound + case.rounding
        if bound or (bound == 0.0 and world.size > 2):
            bound += case.rounding
        checks.append((accelerated, reason, ratio, error, bound, bool(sound)))
    return checks


def midmean(values: np.ndarray) -> float:
    """The interquartile mean: no single value changes it much, nor which of two modes has the median."""
    ordered = np.sort(values)
    cut = ordered.size // 4
    return float(ordered[cut : ordered.size - cut].mean())


def _reported(report, world: MPI.Comm) -> tuple[bool, str, float, float | None]:
    """Whether any rank did not go to MPI unchanged, why, the ratio over all ranks, and the largest bound."""
    own = (False, "no report of this call", 0, 0, 0.0)
    if report is not None:
        own = (report.accelerated, report.reason, report.raw_nbytes, report.wire_nbytes, report.error_bound)
    accelerated, reasons, raw, wire, bounds = zip(*world.allgather(own), strict=True)
    ratio = sum(raw) / sum(wire) if any(wire) else 1.0
    return any(accelerated), reasons[0], ratio, None if None in bounds else max(bounds)


def _difference(result: np.ndarray, expected: np.ndarray, world: MPI.Comm) -> tuple[float, bool]:
    """Largest absolute difference on any rank, and whether all bits are equal on all of them."""
    same = np.array_equal(result.view(np.uint8), expected.view(np.uint8))
    error = 0.0
    if not same:
        error = float(np.abs(result.astype(np.float64) - expected.astype(np.float64)).max())
    error = np.inf if np.isnan(error) else error
    return world.allreduce(error, MPI.MAX), world.allreduce(same, MPI.LAND)
