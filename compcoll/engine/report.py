"""Reports of calls (bytes, ratio, codecs really used, stage times, error bound), and their sums.

Programs get them by `Comm.report` and `compcoll.summary`; traces and torch's reports are made from them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from compcoll.operations import REDUCTIONS

__all__ = ["Report", "Stats", "Summary", "describe"]


@dataclass(frozen=True, slots=True)
class Report:
    """One collective or point-to-point call, as this rank saw it.

    Attributes
    ----------
    op : str
        Name of the method, such as ``"Alltoall"``.
    accelerated : bool
        False if the call was not compressed: MPI carried it out or, with GPUs on all ranks, the engine.
    reason : str
        The reason for the way it ran.
    codec : str or None
        Spec of the codec that the policy chose.
    algorithm : str or None
    raw_nbytes, wire_nbytes : int
        Bytes that this rank would have sent uncompressed, and bytes that it sent, headers included. Forwarded
        frames count each time. If the communicator has several nodes, only bytes to other nodes count: their
        sum over the ranks of a node is the traffic of its port.
    messages : int
        Frames sent.
    codecs : dict of str to int
        Chunks that this rank encoded, by the codec that was really used.
    dimensions : dict of int to int
        The same chunks, by the number of dimensions in which they were coded.
    fallbacks : int
        Chunks that were sent lossless because their lossy codec could not represent them.
    error_bound : float or None
        Largest absolute error of any value of this rank's result, or of the message that it sent, after all
        hops, including rounding by additions; ``|x - x'|`` for complex numbers. 0 if exact, None if it is not
        known, as for a reduction by MPI.
    seconds : dict of str to float
        Time spent in ``encode``, ``decode`` (over all threads), ``wait`` (nothing else to do) and ``total``.
    base_nbytes : int
        Bytes that ``delta`` keeps on this rank for the next start: the values last sent and received.
    inside_nbytes : int
        Bytes sent to ranks of the same node, if the communicator has several nodes.
    workers : int
        Threads that could help to encode and decode: none in short calls and while no core is free;
        ``compcoll info`` shows the reason.
    """

    op: str
    accelerated: bool
    reason: str
    codec: str | None = None
    algorithm: str | None = None
    raw_nbytes: int = 0
    wire_nbytes: int = 0
    messages: int = 0
    codecs: dict[str, int] = field(default_factory=dict)
    fallbacks: int = 0
    error_bound: float | None = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    dimensions: dict[int, int] = field(default_factory=dict)
    base_nbytes: int = 0
    inside_nbytes: int = 0
    workers: int = 0

    @property
    def ratio(self) -> float:
        """Uncompressed bytes per byte on the wire; 1 where nothing was sent."""
        return self.raw_nbytes / self.wire_nbytes if self.wire_nbytes else 1.0

    def __str__(self) -> str:
        if not self.accelerated:
            return f"{self.op}: not compressed ({self.reason})"
        used = ", ".join(f"{n} x {name}" for name, n in self.codecs.items()) or "nothing encoded here"
        shaped = [f"{n} in {ndim}-D" for ndim, n in self.dimensions.items() if ndim > 1]
        used += f" ({', '.join(shaped)})" if shaped else ""
        inside = f" and {self.inside_nbytes} inside the node" if self.inside_nbytes else ""
        bound = "error unknown"
        if self.error_bound is not None:
            bound = f"error <= {self.error_bound:.3g}" if self.error_bound else "exact"
        help = f" with {self.workers} worker thread{'s' * (self.workers > 1)}" if self.workers else ""
        times = ", ".join(f"{stage} {1e3 * t:.2f} ms" for stage, t in self.seconds.items())
        return (
            f"{self.op}: {self.codec} by {self.algorithm}, {self.raw_nbytes} -> {self.wire_nbytes} bytes "
            f"({self.ratio:.2f}x){inside}, {used}, {self.fallbacks} fallbacks, {bound}; {times}{help}"
        )


@dataclass(frozen=True, slots=True)
class Summary:
    """Sums over the calls of this rank, or of one operation, on all communicators that it ever wrapped.

    Attributes
    ----------
    calls : int
        Calls of methods that can be accelerated, accelerated or not; each start of a persistent request that
        was prepared as an accelerated one counts.
    accelerated : int
        Completed calls that did not go to MPI unchanged; a nonblocking call counts when its request is found
        complete.
    raw_nbytes, wire_nbytes : int
        Bytes of accelerated calls, as in `Report`: bytes that this rank would have sent uncompressed, and
        sent.
    operations : dict of str to Summary
        Sums by operation, such as ``"Alltoall"``, which includes ``Ialltoall``; empty in the sum of one
        operation.
    """

    calls: int = 0
    accelerated: int = 0
    raw_nbytes: int = 0
    wire_nbytes: int = 0
    operations: dict[str, Summary] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """Uncompressed bytes per byte on the wire; 1 where nothing was sent."""
        return self.raw_nbytes / self.wire_nbytes if self.wire_nbytes else 1.0

    def __str__(self) -> str:
        own = (
            f"{self.calls} calls, {self.accelerated} accelerated, "
            f"{self.raw_nbytes} -> {self.wire_nbytes} bytes ({self.ratio:.2f}x)"
        )
        return "\n".join([own, *(f"  {op}: {one}" for op, one in self.operations.items())])


@dataclass(eq=False)
class Stats:
    """Sums over schedules, with the fields of `compcoll.engine._engine.RunStatistics`."""

    raw_nbytes: int = 0
    wire_nbytes: int = 0
    inside_nbytes: int = 0
    messages: int = 0
    fallbacks: int = 0
    workers: int = 0
    base_nbytes: int = 0
    bound: float | None = 0.0
    codecs: dict[str, int] = field(default_factory=dict)
    dimensions: dict[int, int] = field(default_factory=dict)
    stages: dict[str, float] = field(
        default_factory=lambda: {"encode": 0.0, "decode": 0.0, "wait": 0.0, "total": 0.0}
    )

    def add(self, outcome: Any, bound: float | None) -> None:
        """Add the outcome of a schedule, and the error of its result."""
        self.raw_nbytes += outcome.raw_nbytes
        self.wire_nbytes += outcome.wire_nbytes
        self.inside_nbytes += outcome.inside_nbytes
        self.messages += outcome.messages
        self.fallbacks += outcome.fallbacks
        self.workers = max(self.workers, outcome.workers)
        self.add_bound(bound)
        for name in ("codecs", "dimensions", "stages"):
            sums = getattr(self, name)
            for key, value in getattr(outcome, name).items():
                sums[key] = sums.get(key, 0) + value

    def add_bound(self, bound: float | None) -> None:
        """Raise the bound of the error; None and NaN make it unknown."""
        known = bound is not None and self.bound is not None and bound == bound
        self.bound = max(bound, self.bound) if known else None  # type: ignore[type-var]


def describe(op: str, way: Any, outcome: Any = None) -> Report:
    """Make the report of a call; without an outcome the second argument is the reason why MPI ran it."""
    if outcome is None:
        return Report(op, False, str(way), error_bound=None if op in REDUCTIONS else 0.0)
    reason, spec, algorithm = "received as it came", None, "stream"
    if way is not None and way.codec is not None:
        reason, spec = way.reason, (way.codec if isinstance(way.codec, str) else way.codec.spec) or None
        algorithm = getattr(way, "name", None) or way.algorithm
    bound = outcome.bound
    if bound is not None and op in REDUCTIONS:
        bound *= 1 + 2.0**-40  # was added up from many, and rounded as often
    return Report(
        op,
        True,
        reason,
        spec,
        algorithm,
        outcome.raw_nbytes,
        outcome.wire_nbytes,
        outcome.messages,
        dict(outcome.codecs),
        outcome.fallbacks,
        bound,
        dict(outcome.stages),
        dict(outcome.dimensions),
        outcome.base_nbytes,
        outcome.inside_nbytes,
        outcome.workers,
    )
