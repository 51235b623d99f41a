"""The reader of a folder of trace files, for ``compcoll report``, which needs no MPI.

Damaged files are read as far as possible, and missing ones are named; `compcoll.tracing.writer` has the
format.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from json import loads
from pathlib import Path
from sys import float_info, intern
from typing import Any, NamedTuple

from compcoll.tracing import VERSION
from compcoll.tracing.words import plural

__all__ = ["Measured", "Program", "Rank", "Sample", "TracedCall", "read"]

#: Upper limits of plausible clock readings and of times of day, in seconds.
_MOST_SECONDS, _LATEST = 1e12, 6e10


@dataclass(slots=True)
class TracedCall:
    """A line of a trace; see `compcoll.tracing.writer`."""

    op: str
    comm: str
    size: int
    dtype: str  # NumPy's name; "other" if it has none, "-" without values, "unknown" in traces without it
    nbytes: int
    raw: int
    wire: int
    accelerated: bool
    reason: str
    codec: str | None
    algorithm: str | None
    fallbacks: int
    bound: float | None
    encode: float
    decode: float
    wait: float
    total: float  # seconds until the call was complete
    start: float  # seconds on the ranks' common clock, from the first call of any of them
    inside: float  # seconds within the method, less than ``total`` for nonblocking calls
    place: str
    problem: str | None

    @property
    def is_nonblocking(self) -> bool:
        """True if it was still in flight when its method had returned."""
        return self.inside != self.total

    @property
    def parts(self) -> dict[str, float]:
        """Seconds by activity, which add up to ``total``; sums over threads are reduced to fit."""
        if not self.accelerated:
            return {"MPI": self.total}
        parts, left = {}, self.total
        for name, seconds in (("encode", self.encode), ("decode", self.decode), ("wait", self.wait)):
            parts[name] = min(seconds, left)
            left -= parts[name]
        return {**parts, "other": left}


class Measured(NamedTuple):
    """Seconds within a call of plain MPI in a trial of a method with a buffer of this type and size."""

    op: str
    dtype: str
    nbytes: int
    plain: float


class Sample(NamedTuple):
    """A codec on some values that a rank sent; see `compcoll.tracing.samples`."""

    op: str
    dtype: str
    nbytes: int
    codec: str
    encode: float
    decode: float
    share: float
    error: float


@dataclass
class Rank:
    """The trace of one rank."""

    rank: int
    size: int
    head: dict[str, Any]  # its first line, with the job's facts
    calls: list[TracedCall] = field(default_factory=list)  # in the order of their starts
    measured: list[Measured] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    clocks: list[tuple[float, float]] = field(default_factory=list)  # when compared, seconds off rank 0's
    run: str | None = None  # identity of the program, which all ranks share after their first meeting
    end: dict[str, Any] | None = None  # its last line, if it reached its end
    bad_lines: int = 0

    def offset(self, at: float) -> float:
        """Offset of its clock at a time on it, by linear interpolation of the measured offsets."""
        (t0, a), (t1, b) = self.clocks[0], self.clocks[-1]
        return a + (b - a) * (at - t0) / (t1 - t0) if t1 > t0 else a

    def faults(self) -> Iterator[str]:
        """Descriptions of what its file lacks."""
        if self.bad_lines:
            verb = "is" if self.bad_lines == 1 else "are"
            yield f"rank {self.rank}: {plural(self.bad_lines, 'line')} {verb} damaged, and left out"
        if self.end is None:
            killed = "it was killed or runs still, and last calls may be missing"
            yield f"rank {self.rank}: no last line; {killed}"
        elif self.end.get("failed"):
            yield f"rank {self.rank} ended by an error"
        elif self.end["end"] != len(self.calls):
            written = plural(self.end["end"], "call")
            yield f"rank {self.rank}: its file has {len(self.calls)} of {written}"


@dataclass(eq=False)  # hashed by identity
class Program:
    """The trace of a program in a folder."""

    size: int  # ranks of the program
    ranks: list[Rank]  # those that left a file
    notes: list[str]  # descriptions of missing or damaged files

    def calls(self) -> Iterator[tuple[int, TracedCall]]:
        """Iterate over all calls with their ranks."""
        for rank in self.ranks:
            for call in rank.calls:
                yield rank.rank, call

    @cached_property
    def seconds(self) -> float:
        """Seconds from the start of the first call to the end of the last one."""
        return max((call.start + call.total for _, call in self.calls()), default=0.0)

    @property
    def measured(self) -> list[Measured]:
        """Times of plain MPI measured in trials of any rank."""
        return [one for rank in self.ranks for one in rank.measured]

    @property
    def title(self) -> str:
        """The program's command line."""
        words = self.ranks[0].head.get("program")
        text = " ".join(_printable(str(word)) for word in words) if isinstance(words, list) else ""
        return text or "a program"


def read(folder: Path) -> Program:
    """The program whose trace is in a folder; ValueError if there is none."""
    notes: list[str] = []
    ranks = [rank for path in sorted(folder.glob("rank*.jsonl")) if (rank := _read_rank(path, notes))]
    if not ranks:
        more = f": {'; '.join(notes)}" if notes else ""
        raise ValueError(
            f"{folder} has no trace of a program, that is no file rank*.jsonl with a first line{more}"
        )
    latest = max(ranks, key=lambda rank: (bool(rank.clocks), rank.head["date"]))
    kept = [rank for rank in ranks if rank.run in (None, latest.run) and rank.size == latest.size]
    for rank in ranks:
        if rank not in kept:
            notes.append(f"rank {rank.rank}: its file is of another run, and left out")
    there = {rank.rank for rank in kept}
    absent = list(islice((str(r) for r in range(latest.size) if r not in there), 20))
    if absent:
        notes.append(f"no file of rank{'s' * (len(absent) > 1)} {', '.join(absent)} of {latest.size}")
    for rank in kept:
        notes.extend(rank.faults())
    _put_on_one_clock(kept, notes)
    return Program(latest.size, kept, notes)


def _read_rank(path: Path, notes: list[str]) -> Rank | None:
    """The trace in a file; None, and a note, where it does not begin as one or cannot be read."""
    rank: Rank | None = None
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for text in file:
                try:
                    if rank is None:
                        rank = _head(_object(text), path.name)
                    else:
                        _add_line(rank, _object(text))
                except (LookupError, TypeError, ValueError) as problem:
                    if rank is None:
                        said = f"it has no {problem}" if isinstance(problem, KeyError) else problem
                        notes.append(f"{path.name} does not begin as a trace of version {VERSION}: {said}")
                        return None
                    rank.bad_lines += 1
    except OSError as error:
        notes.append(f"{path.name} cannot be read: {error.strerror or error}")
        return rank
    if rank is None:
        notes.append(f"{path.name} is empty")
    return rank


def _object(text: str) -> dict[str, Any]:
    """The JSON object of a line; ValueError if it is none."""
    try:
        line = loads(text)
    except RecursionError as error:
        raise ValueError(str(error)) from None
    if not isinstance(line, dict):
        raise ValueError("its line is no JSON object")
    return line


def _head(line: dict[str, Any], name: str) -> Rank:
    if line["trace"] != VERSION:
        raise ValueError(f"it is of version {line['trace']!r}")
    rank, size = _count(line["rank"]), _count(line["size"])
    if rank >= size:
        raise ValueError(f"rank {rank} of {size}")
    if name != f"rank{rank:05d}.jsonl":
        raise ValueError(f"it is the file of rank {rank}")
    of_later_lines = "nodes", "link", "cores"
    line = {key: value for key, value in line.items() if key not in of_later_lines}
    line |= {"date": _number(line["date"], _LATEST), "at": _number(line["at"])}
    line["host"] = _printable(str(line.get("host", "unknown")))
    command = line.get("command") or line.get("program")
    line["command"] = [_printable(str(word)) for word in command] if isinstance(command, list) else []
    versions = dict(line.get("versions", {}))
    line["versions"] = {_text(name): _text(text) for name, text in versions.items()}
    return Rank(rank, size, line)


def _add_line(rank: Rank, line: dict[str, Any]) -> None:
    """Add the contents of a line after the first."""
    if "clock" in line:
        rank.clocks.append((_number(line["clock"]), _number(line["offset"])))
        rank.run = _text(line["run"])
        if "nodes" in line:
            rank.head |= {"nodes": [_count(node) for node in line["nodes"]], "link": _number(line["link"])}
            rank.head["cores"] = _number(line.get("cores", 1.0))
    elif "rows" in line:
        rank.measured += [_measured(row) for row in line["rows"]]
    elif "samples" in line:
        rank.samples += [_sample(one) for one in line["samples"]]
    elif "end" in line:
        rank.end = {**line, "end": _count(line["end"])}
    else:
        rank.calls.append(_call(line))


def _call(line: dict[str, Any]) -> TracedCall:
    bound, file, place = line.get("error_bound"), _text_or_none(line, "file"), line.get("line")
    total, nbytes = _number(line["total"]), _count(line["nbytes"])
    missing = "other" if nbytes else "-"
    return TracedCall(
        op=_text(line["op"]),
        comm=_text(line["comm"]),
        size=_count(line["size"]),
        dtype=_text_or_none(line, "dtype") or missing if "dtype" in line else "unknown",
        nbytes=nbytes,
        raw=_count(line["bytes"]),
        wire=_count(line["wire_bytes"]),
        accelerated=_flag(line["accelerated"]),
        reason=_text(line["reason"]),
        codec=_text_or_none(line, "codec"),
        algorithm=_text_or_none(line, "algorithm"),
        fallbacks=_count(line.get("fallbacks", 0)),
        bound=None if bound is None else _number(bound, float_info.max),
        encode=_number(line.get("encode", 0.0)),
        decode=_number(line.get("decode", 0.0)),
        wait=_number(line.get("wait", 0.0)),
        total=max(total, 0.0),
        start=_number(line["start"]),
        inside=max(_number(line.get("returned", total)), 0.0),
        place=intern(f"{file}:{_text(place) if isinstance(place, str) else _count(place)}")
        if file
        else "unknown",
        problem=_text_or_none(line, "problem"),
    )


def _measured(row: dict[str, Any]) -> Measured:
    """A row of a trial, which has the seconds within a compressed call and within a plain one."""
    return Measured(_text(row["op"]), _text(row["type"]), _count(row["bytes"]), _number(row["in_call"][1]))


def _sample(line: dict[str, Any]) -> Sample:
    """A sample, whose times are for each uncompressed byte."""
    names = _text(line["op"]), _text(line["dtype"]), _count(line["bytes"]), _text(line["codec"])
    return Sample(*names, *(_number(line[name]) for name in ("encode", "decode", "share", "error")))


def _number(value: Any, most: float = _MOST_SECONDS) -> float:
    """A number of at most this magnitude; ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= most:
        raise ValueError(f"{value!r} is not a number, or too large")
    return float(value)


def _count(value: Any) -> int:
    """A whole number that is not negative; ValueError for anything else."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r} is not a count")
    return value


def _flag(value: Any) -> bool:
    """True or false; ValueError for anything else."""
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def _text(value: Any) -> str:
    """A text, interned so that equal ones share an object; ValueError for anything else."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a text")
    return intern(_printable(value))


def _text_or_none(line: dict[str, Any], key: str) -> str | None:
    """A text that may be missing."""
    return None if line.get(key) is None else _text(line[key])


def _printable(text: str) -> str:
    """A text without surrogates, which file names that are not UTF-8 contain."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _put_on_one_clock(ranks: list[Rank], notes: list[str]) -> None:
    """Convert all starts to seconds from the first one, on rank 0's clock."""
    base = next((rank for rank in ranks if rank.clocks), ranks[0])
    there = _time_of_day(base) - (base.offset(base.head["at"]) if base.clocks else 0.0)
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
    return float(rank.head["at"] - rank.head["date"])
