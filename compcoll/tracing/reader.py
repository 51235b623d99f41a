"""The reader of a folder of trace files, for ``compcoll report``, which needs no MPI.

Damaged files are read as far as they go, and missing ones are named; `compcoll.tracing.writer` has the
format.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from json import loads
from pathlib import Path
from sys import intern
from typing import Any, NamedTuple

from compcoll.tracing import VERSION

__all__ = ["Call", "Measured", "Program", "Rank", "read"]


@dataclass(slots=True)
class Call:
    """A line of a trace; see `compcoll.tracing.writer`."""

    op: str
    comm: str
    size: int
    nbytes: int
    raw: int
    wire: int
    accelerated: bool
    reason: str
    codec: str | None
    fallbacks: int
    bound: float | None
    encode: float
    decode: float
    wait: float
    total: float  # seconds until the call was complete
    start: float  # seconds on the clock that all ranks have in common, from the first call of any of them
    inside: float  # seconds of the method, fewer than in all where it is nonblocking
    place: str
    problem: str | None

    @property
    def is_nonblocking(self) -> bool:
        """Whether it was under way after its method had returned."""
        return self.inside != self.total

    @property
    def parts(self) -> dict[str, float]:
        """Seconds by what the call spent them on, together ``total``; threads' sums are cut to fit."""
        if not self.accelerated:
            return {"MPI": self.total}
        parts, left = {}, self.total
        for name, seconds in (("encode", self.encode), ("decode", self.decode), ("wait", self.wait)):
            parts[name] = min(seconds, left)
            left -= parts[name]
        return {**parts, "other": left}


class Measured(NamedTuple):
    """Seconds of plain MPI in a trial of a method with a buffer of this size."""

    op: str
    nbytes: int
    plain: float


@dataclass
class Rank:
    """The trace of one rank."""

    rank: int
    size: int
    head: dict[str, Any]  # its first line
    calls: list[Call] = field(default_factory=list)  # in the order of their beginnings
    measured: list[Measured] = field(default_factory=list)
    clocks: list[tuple[float, float]] = field(default_factory=list)  # when compared, seconds off rank 0's
    run: str | None = None  # identity of the program, which all ranks share after their first meeting
    end: dict[str, Any] | None = None  # its last line, where it came to its end
    bad_lines: int = 0

    def offset(self, at: float) -> float:
        """Offset of its clock at a time of its own, by a line through the measured offsets."""
        (t0, a), (t1, b) = self.clocks[0], self.clocks[-1]
        return a + (b - a) * (at - t0) / (t1 - t0) if t1 > t0 else a

    def faults(self) -> Iterator[str]:
        """Descriptions of what its file lacks."""
        if self.bad_lines:
            yield f"rank {self.rank}: {self.bad_lines} lines are damaged, and left out"
        if self.end is None:
            killed = "it was killed or runs still, and last calls may be missing"
            yield f"rank {self.rank}: no last line; {killed}"
        elif self.end.get("failed"):
            yield f"rank {self.rank} ended by an error"
        elif self.end["end"] != len(self.calls):
            yield f"rank {self.rank}: {len(self.calls)} of its {self.end['end']} calls are there"


@dataclass
class Program:
    """All that is in a folder."""

    size: int  # ranks of the program
    ranks: list[Rank]  # those that left a file
    notes: list[str]  # descriptions of missing or damaged files

    def calls(self) -> Iterator[tuple[int, Call]]:
        """All calls, with their ranks."""
        for rank in self.ranks:
            for call in rank.calls:
                yield rank.rank, call

    @property
    def measured(self) -> list[Measured]:
        """Times of plain MPI that trials of any rank have measured."""
        return [one for rank in self.ranks for one in rank.measured]

    @property
    def title(self) -> str:
        """The program's command line."""
        words = self.ranks[0].head.get("program")
        text = " ".join(map(str, words)) if isinstance(words, list) else ""
        return text or "a program"


def read(folder: Path) -> Program:
    """The program whose trace is in a folder; ValueError where there is none."""
    notes: list[str] = []
    ranks = [rank for path in sorted(folder.glob("rank*.jsonl")) if (rank := _read_rank(path, notes))]
    if not ranks:
        more = f": {'; '.join(notes)}" if notes else ""
        raise ValueError(
            f"{folder} has no trace of a program, that is no file rank*.jsonl with a first line{more}"
        )
    latest = max(ranks, key=lambda rank: (bool(rank.clocks), _number(rank.head.get("date"))))
    kept = [rank for rank in ranks if rank.run in (None, latest.run) and rank.size == latest.size]
    for rank in ranks:
        if rank not in kept:
            notes.append(f"rank {rank.rank}: its file is of another run, and left out")
    there = {rank.rank for rank in kept}
    absent = [str(r) for r in range(latest.size) if r not in there]
    if absent:
        notes.append(f"no file of rank{'s' * (len(absent) > 1)} {', '.join(absent[:20])} of {latest.size}")
    for rank in kept:
        notes.extend(rank.faults())
    _put_on_one_clock(kept, notes)
    return Program(latest.size, kept, notes)


def _read_rank(path: Path, notes: list[str]) -> Rank | None:
    """The trace in a file; None, and a note, where it does not begin as one."""
    rank: Rank | None = None
    with path.open(encoding="utf-8", errors="replace") as file:
        for text in file:
            try:
                line = loads(text)
                if rank is None:
                    rank = _head(line)
                else:
                    _add_line(rank, line)
            except (LookupError, TypeError, ValueError, OverflowError) as problem:
                if rank is None:
                    notes.append(f"{path.name} does not begin as a trace of version {VERSION}: {problem}")
                    return None
                rank.bad_lines += 1
    if rank is None:
        notes.append(f"{path.name} is empty")
    return rank


def _head(line: dict[str, Any]) -> Rank:
    if line["trace"] != VERSION:
        raise ValueError(f"it is of version {line['trace']!r}")
    rank, size = line["rank"], line["size"]
    if type(rank) is not int or type(size) is not int or not 0 <= rank < size:
        raise ValueError(f"rank {rank!r} of {size!r}")
    return Rank(rank, size, line)


def _add_line(rank: Rank, line: dict[str, Any]) -> None:
    """Add what a line behind the first says."""
    if "clock" in line:
        rank.clocks.append((_number(line["clock"]), _number(line["offset"])))
        rank.run = str(line["run"])
    elif "rows" in line:
        rank.measured += [_measured(row) for row in line["rows"] if row["us"][1] is not None]
    elif "end" in line:
        rank.end = {**line, "end": int(line["end"])}
    else:
        rank.calls.append(_call(line))


def _call(line: dict[str, Any]) -> Call:
    codec, bound, problem, file = (line.get(key) for key in ("codec", "error_bound", "problem", "file"))
    total = _number(line["total"])
    return Call(
        op=intern(str(line["op"])),
        comm=intern(str(line["comm"])),
        size=int(line["size"]),
        nbytes=int(line["nbytes"]),
        raw=int(line["bytes"]),
        wire=int(line["wire_bytes"]),
        accelerated=bool(line["accelerated"]),
        reason=intern(str(line["reason"])),
        codec=None if codec is None else intern(str(codec)),
        fallbacks=int(line.get("fallbacks", 0)),
        bound=None if bound is None else _number(bound),
        encode=_number(line.get("encode", 0.0)),
        decode=_number(line.get("decode", 0.0)),
        wait=_number(line.get("wait", 0.0)),
        total=max(total, 0.0),
        start=_number(line["start"]),
        inside=max(_number(line.get("returned", total)), 0.0),
        place=intern(f"{file}:{line.get('line')}" if file else "unknown"),
        problem=None if problem is None else str(problem),
    )


def _measured(row: dict[str, Any]) -> Measured:
    """A row of a trial, whose times are microseconds, compressed and plain."""
    op = str(row["op"])
    method = {"nonblocking": f"I{op.lower()}", "persistent": f"{op}_init"}.get(row["form"], op)
    return Measured(method, int(row["bytes"]), 1e-6 * _number(row["us"][1]))


def _number(value: Any) -> float:
    """A number; ValueError for what is none, or not finite."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value or abs(value) > 1e300:
        raise ValueError(f"{value!r} is not a number")
    return float(value)


def _put_on_one_clock(ranks: list[Rank], notes: list[str]) -> None:
    """Make all beginnings seconds from the first one, on rank 0's clock."""
    base = next((rank for rank in ranks if rank.clocks), ranks[0])
    there = _time_of_day(base) - (base.offset(_number(base.head.get("at", 0.0))) if base.clocks else 0.0)
    for rank in ranks:
        guess = _time_of_day(rank) - there
        if not rank.clocks and len(ranks) > 1:
            notes.append(f"rank {rank.rank}: its clock was never compared; it is taken by the time of day")
        elif len(rank.clocks) == 1:
            notes.append(f"rank {rank.rank}: its clock was compared at the beginning only")
        for call in rank.calls:
            call.start -= rank.offset(call.start) if rank.clocks else guess
        rank.calls.sort(key=lambda call: call.start)
    first = min((rank.calls[0].start for rank in ranks if rank.calls), default=0.0)
    for rank in ranks:
        for call in rank.calls:
            call.start -= first


def _time_of_day(rank: Rank) -> float:
    """Seconds of its clock minus the time of day."""
    at, date = (_number(rank.head.get(key, 0.0)) for key in ("at", "date"))
    return at - date
