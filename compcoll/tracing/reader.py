"""A folder of trace files, read back: damaged ones as far as they go, and what is missing is said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from json import loads
from pathlib import Path
from sys import intern
from typing import Any

from compcoll.tracing import VERSION

__all__ = ["Call", "Program", "Rank", "read"]


@dataclass(slots=True)
class Call:
    """A line of a trace; see `compcoll.tracing.lines`.

    Attributes
    ----------
    start : float
        Seconds on the clock that all ranks have in common, from the first call of any of them.
    inside : float
        Seconds that the method took; those of a nonblocking call are fewer than its ``total``.
    """

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
    total: float
    start: float
    inside: float
    place: str
    problem: str | None

    @property
    def is_nonblocking(self) -> bool:
        """Whether it was under way after its method had returned."""
        return self.inside != self.total


@dataclass
class Rank:
    """The trace of one rank.

    Attributes
    ----------
    rank, size : int
    head : dict
        Its first line.
    calls : list of Call
        In the order of their beginnings.
    clocks : list of (float, float)
        When its clock was compared, and how far it was off from rank 0's.
    end : dict or None
        Its last line, where it came to its end.
    bad_lines : int
    """

    rank: int
    size: int
    head: dict[str, Any]
    calls: list[Call] = field(default_factory=list)
    clocks: list[tuple[float, float]] = field(default_factory=list)
    end: dict[str, Any] | None = None
    bad_lines: int = 0

    @property
    def run(self) -> str | None:
        """Identity of the program, which all ranks share after their first meeting."""
        return self.head.get("run")

    def offset(self, at: float) -> float | None:
        """Offset of its clock at a time of its own, by a line through the measured offsets."""
        if not self.clocks:
            return None
        (t0, a), (t1, b) = self.clocks[0], self.clocks[-1]
        return a + (b - a) * (at - t0) / (t1 - t0) if t1 > t0 else a


@dataclass
class Program:
    """All that is in a folder.

    Attributes
    ----------
    size : int
        Ranks of the program.
    ranks : list of Rank
        Those that left a file.
    notes : list of str
        Descriptions of missing or damaged files.
    """

    size: int
    ranks: list[Rank]
    notes: list[str]

    @property
    def ranks_per_node(self) -> int:
        """The most ranks of any host."""
        return max(Counter(rank.head.get("host") for rank in self.ranks).values(), default=1)

    @property
    def on_one_node(self) -> bool:
        """Whether all ranks ran on one host."""
        return self.ranks_per_node >= self.size

    def calls(self) -> Iterator[tuple[int, Call]]:
        """All calls, with their ranks."""
        for rank in self.ranks:
            for call in rank.calls:
                yield rank.rank, call

    @property
    def title(self) -> str:
        """The program's command line."""
        words = self.ranks[0].head.get("program") if self.ranks else None
        return " ".join(map(str, words)) if isinstance(words, list) else "a program"


def read(folder: Path) -> Program:
    """The program whose trace is in a folder; ValueError where there is none."""
    files = sorted(folder.glob("rank*.jsonl"))
    notes: list[str] = []
    ranks = [rank for path in files if (rank := _read_rank(path, notes)) is not None]
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
        notes.extend(_state(rank))
    _put_on_one_clock(kept, notes)
    return Program(latest.size, kept, notes)


def _state(rank: Rank) -> Iterator[str]:
    """Faults of a rank's file."""
    if rank.bad_lines:
        yield f"rank {rank.rank}: {rank.bad_lines} lines are damaged, and left out"
    if rank.end is None:
        yield f"rank {rank.rank}: no last line; it was killed or runs still, and last calls may be missing"
    elif rank.end.get("failed"):
        yield f"rank {rank.rank} ended by an error"
    elif rank.end["end"] != len(rank.calls):
        yield f"rank {rank.rank}: {len(rank.calls)} of its {rank.end['end']} calls are there"


def _read_rank(path: Path, notes: list[str]) -> Rank | None:
    rank: Rank | None = None
    with path.open(encoding="utf-8", errors="replace") as file:
        for text in file:
            try:
                line = loads(text)
                if rank is None:
                    rank = _head(line)
                    continue
                _take(rank, line)
            except (KeyError, TypeError, ValueError) as problem:
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


def _take(rank: Rank, line: dict[str, Any]) -> None:
    """Understand a line behind the first."""
    if "clock" in line:
        rank.clocks.append((_number(line["clock"]), _number(line["offset"])))
        rank.head["run"] = str(line["run"])
    elif "end" in line:
        rank.end = {**line, "end": int(line["end"])}
    else:
        rank.calls.append(_call(line))


def _call(line: dict[str, Any]) -> Call:
    codec, bound, problem = line.get("codec"), line.get("error_bound"), line.get("problem")
    file = line.get("file")
    encode, decode, wait = (_number(line.get(stage, 0.0)) for stage in ("encode", "decode", "wait"))
    return Call(
        intern(str(line["op"])),
        intern(str(line["comm"])),
        int(line["size"]),
        int(line["nbytes"]),
        int(line["bytes"]),
        int(line["wire_bytes"]),
        bool(line["accelerated"]),
        intern(str(line["reason"])),
        intern(str(codec)) if codec is not None else None,
        int(line.get("fallbacks", 0)),
        None if bound is None else _number(bound),
        encode,
        decode,
        wait,
        max(_number(line["total"]), 0.0),
        _number(line["start"]),
        max(_number(line.get("returned", line["total"])), 0.0),
        intern(f"{file}:{line.get('line')}" if file else "unknown"),
        str(problem) if problem is not None else None,
    )


def _number(value: Any) -> float:
    """A number; ValueError for what is none, or not finite."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value or abs(value) > 1e300:
        raise ValueError(f"{value!r} is not a number")
    return float(value)


def _put_on_one_clock(ranks: list[Rank], notes: list[str]) -> None:
    """Make all beginnings seconds from the first one, on rank 0's clock."""
    base = next((rank for rank in ranks if rank.clocks), ranks[0])
    for rank in ranks:
        guess = 0.0
        if not rank.clocks:
            # By what the machine takes for the time of day.
            date, at = (_number(rank.head.get(key, 0.0)) for key in ("date", "at"))
            there = _number(base.head.get("at", 0.0)) - _number(base.head.get("date", 0.0))
            guess = at - date - there + (base.offset(at) or 0.0)
            if len(ranks) > 1:
                notes.append(
                    f"rank {rank.rank}: its clock was never compared; it is taken by the time of day"
                )
        elif len(rank.clocks) == 1:
            notes.append(f"rank {rank.rank}: its clock was compared at the beginning only")
        for call in rank.calls:
            offset = rank.offset(call.start)
            call.start -= guess if offset is None else offset
        rank.calls.sort(key=lambda call: call.start)
    first = min((rank.calls[0].start for rank in ranks if rank.calls), default=0.0)
    for rank in ranks:
        for call in rank.calls:
            call.start -= first
