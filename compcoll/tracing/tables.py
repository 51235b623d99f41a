"""Tables of a traced program: by operation and size, communicator, place, and reason."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field

from compcoll.tracing.reader import Call, Program

__all__ = [
    "Row",
    "by_communicator",
    "by_operation",
    "by_place",
    "by_reason",
    "reason_of",
    "size_class",
    "total",
]

#: Answers of the model on a call, by the beginning of its reason.
_MODEL = {
    "predicted": "plain MPI is predicted to be faster",
    "measured": "plain MPI was measured to be faster",
    "on trial": "tried beside compressed calls",
}


@dataclass
class Row:
    """Calls of a kind, of all ranks together.

    Attributes
    ----------
    calls, accelerated, fallbacks : int
    least, largest, seconds : float
        The shortest and longest call, and the sum of all.
    raw, wire : int
        Bytes that would have been sent uncompressed, and bytes that were.
    bound : float or None
        The largest error bound, None where one is not known.
    codecs : set of str
    sizes : dict
        Of (bytes of the buffer, ranks of the communicator) how many calls.
    """

    calls: int = 0
    accelerated: int = 0
    fallbacks: int = 0
    least: float = float("inf")
    largest: float = 0.0
    seconds: float = 0.0
    raw: int = 0
    wire: int = 0
    bound: float | None = 0.0
    codecs: set[str] = field(default_factory=set)
    sizes: dict[tuple[int, int], int] = field(default_factory=dict)

    def add(self, call: Call) -> None:
        """Count a call."""
        self.calls += 1
        self.accelerated += call.accelerated
        self.fallbacks += call.fallbacks
        self.least, self.largest = min(self.least, call.total), max(self.largest, call.total)
        self.seconds += call.total
        self.raw += call.raw
        self.wire += call.wire
        self.bound = None if self.bound is None or call.bound is None else max(self.bound, call.bound)
        if call.codec is not None:
            self.codecs.add(call.codec)
        key = call.nbytes, call.size
        self.sizes[key] = self.sizes.get(key, 0) + 1

    @property
    def mean(self) -> float:
        """Mean seconds of a call."""
        return self.seconds / self.calls

    @property
    def ratio(self) -> float:
        """Uncompressed bytes per byte on the wire; 1 where nothing was sent."""
        return self.raw / self.wire if self.wire else 1.0


def size_class(nbytes: int) -> int:
    """The least size of a buffer's class, in bytes: 0, 1 KiB, and on by factors of 4."""
    least = 0
    bound = 1 << 10
    while nbytes >= bound:
        least, bound = bound, bound << 2
    return least


def by_operation(program: Program) -> dict[tuple[str, int], Row]:
    """By method and size class."""
    return dict(sorted(_grouped(program, lambda call: (call.op, size_class(call.nbytes))).items()))


def by_communicator(program: Program) -> dict[tuple[str, int], Row]:
    """By name and number of ranks, the longest first."""
    return _longest_first(_grouped(program, lambda call: (call.comm, call.size)))


def by_place(program: Program) -> dict[tuple[str, str], Row]:
    """By file and line, and method, the longest first."""
    return _longest_first(_grouped(program, lambda call: (call.place, call.op)))


def by_reason(program: Program) -> dict[str, Row]:
    """Those of plain MPI by the reason, the longest first."""
    rows = _grouped(program, lambda call: None if call.accelerated else reason_of(call.reason))
    rows.pop(None, None)
    return _longest_first(rows)


def reason_of(text: str) -> str:
    """A reason without the figures of one call: those of a kind are one."""
    return next((kind for start, kind in _MODEL.items() if text.startswith(start)), text)


def total(program: Program) -> Row:
    """All calls."""
    return _grouped(program, lambda call: "all").get("all", Row(least=0.0))


def _grouped(program: Program, key: Callable[[Call], Hashable]) -> dict:
    rows: dict[Hashable, Row] = {}
    for _, call in program.calls():
        rows.setdefault(key(call), Row()).add(call)
    return rows


def _longest_first(rows: dict) -> dict:
    pairs: Iterable = sorted(rows.items(), key=lambda pair: -pair[1].seconds)
    return dict(pairs)
