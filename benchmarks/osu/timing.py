"""The harness of the benchmarks, in OSU's layout: one row per size.

Plain MPI and every codec alternate call by call in one loop, in a new random order each round. Disturbances
of the machine, and effects of one call on the next, therefore affect them equally. A call begins after a
barrier; its time is the maximum over the ranks. Results are compared with plain MPI's after the loop, when
automatic choices have been made, and never inside it.

GB/s are effective: the uncompressed bytes that the busiest rank has to move in any algorithm, per second of
the median call.
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

#: Name of the control, a second plain MPI.
CONTROL = "mpi again"
MIN_ITERS = 3
#: Parts of a loop, whose speed-ups give the standard error of the whole loop's.
BATCHES = 10


@dataclass(frozen=True)
class Row:
    """Figures of one size and one communicator; equal on all ranks.

    Attributes
    ----------
    nbytes : int
        Size of the buffer that a rank passes; for Alltoall the whole buffer, not one peer's block.
    name : str
        ``"mpi"`` or the spec of the codec.
    iters : int
    seconds : dict of str to float
        ``min``, ``median``, ``mean``, ``max`` and ``midmean`` (interquartile mean) over the calls; a call's
        time is the slowest rank's.
    processor_seconds : float
        Median processor time of a call, over all threads of the rank where it is largest.
    gbytes_per_s : float
    speedup : float
        Median time of plain MPI divided by this one's.
    spread : float or None
        Two standard errors of the speed-up, from the loop's parts; None if there are too few calls.
    accelerated : bool
        False if the call was passed to MPI unchanged.
    reason : str
        The reason, as rank 0 reports it.
    ratio : float
        Uncompressed bytes per byte on the wire, over all ranks.
    error : float
        Largest absolute difference from plain MPI's result; inf if a value is NaN.
    bound : float or None
        The promised error, plus the rounding errors of both sums; None without a promise.
    sound : bool
        True if the promise was kept; a bound of 0 means equal bits, up to the order of additions.
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
        """A dict for JSON."""
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
        Communicators by name; the first one is plain, and the others are compared with it.
    values : Source
    nbytes : int
        Size of the buffer that a rank passes, rounded down to whole values, at least one for each message.
    warmup, iters : int
        Calls before and in the measurement.
    min_seconds : float
        Least time of all calls together; more calls are made to reach it.
    max_seconds : float
        Largest time of all calls together; fewer calls are made to keep it, but at least 3.
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
    """Times of calls on the slowest rank, and processor times on the busiest rank.

    Seconds, of shape (2, communicators, calls).
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
    """Two standard errors of the ratio of medians; None if there are too few calls."""
    batches = min(BATCHES, len(own) // MIN_ITERS)
    if batches < 2:
        return None if own is not plain else 0.0
    pairs = zip(np.array_split(plain, batches), np.array_split(own, batches), strict=True)
    ratios = [np.median(a) / np.median(b) for a, b in pairs]
    return float(2 * np.std(ratios, ddof=1) / np.sqrt(batches))


def _check(case: Case, comms: dict[str, MPI.Comm], world: MPI.Comm, values: Source) -> list[tuple]:
    """For each communicator, the fields of `Row` from `accelerated` on."""
    checks = []
    expected = None
    for comm in comms.values():
        # Values left by the previous call must not pass for this call's result.
        values.spoil(case.result)
        case.reset()
        before = getattr(comm, "report", None)
        case.call(comm)
        getattr(comm, "settle", lambda: None)()
        report = getattr(comm, "report", None)
        result = values.host(case.result)
        expected = result.copy() if expected is None else expected
        # A call that a communicator does not handle leaves an earlier call's report.
        accelerated, reason, ratio, bound = _reported(None if report is before else report, world)
        error, same = _difference(result, expected, world)
        # The sum of two values is unique; sums of three or more depend on the order of additions.
        exact = same or (world.size > 2 and 0.0 < error <= case.rounding)
        sound = exact if bound == 0.0 else bound is None or error <= bound + case.rounding
        if bound or (bound == 0.0 and world.size > 2):
            bound += case.rounding
        checks.append((accelerated, reason, ratio, error, bound, bool(sound)))
    return checks


def midmean(values: np.ndarray) -> float:
    """The interquartile mean, which is robust against outliers and against a distribution with two modes."""
    ordered = np.sort(values)
    cut = ordered.size // 4
    return float(ordered[cut : ordered.size - cut].mean())


def _reported(report, world: MPI.Comm) -> tuple[bool, str, float, float | None]:
    """Accelerated on any rank, rank 0's reason, the ratio over all ranks, and the largest bound."""
    own = (False, "no report of this call", 0, 0, 0.0)
    if report is not None:
        own = (report.accelerated, report.reason, report.raw_nbytes, report.wire_nbytes, report.error_bound)
    accelerated, reasons, raw, wire, bounds = zip(*world.allgather(own), strict=True)
    ratio = sum(raw) / sum(wire) if any(wire) else 1.0
    return any(accelerated), reasons[0], ratio, None if None in bounds else max(bounds)


def _difference(result: np.ndarray, expected: np.ndarray, world: MPI.Comm) -> tuple[float, bool]:
    """Largest absolute difference on any rank, and True if all bits are equal on all ranks."""
    same = np.array_equal(result.view(np.uint8), expected.view(np.uint8))
    error = 0.0
    if not same:
        error = float(np.abs(result.astype(np.float64) - expected.astype(np.float64)).max())
    error = np.inf if np.isnan(error) else error
    return world.allreduce(error, MPI.MAX), world.allreduce(same, MPI.LAND)
