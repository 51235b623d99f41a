"""The trace-event file that Perfetto and chrome://tracing open: ``compcoll report`` writes it.

Ranks are processes. Calls are on the track ``calls``; nonblocking ones, from their start to their completion,
are on tracks ``under way``. Encoding, decoding and waiting are only known as sums within a call: they are
drawn on separate tracks, within the span of the call: encoding from its start, decoding until its end, and
waiting in between.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from compcoll.tracing.reader import Program, TracedCall
from compcoll.tracing.words import plural

__all__ = ["events", "write"]

#: Tracks of a rank and the numbers of their first threads; calls that overlap take the next ones.
_TRACKS = {"calls": 0, "under way": 1000, "encode": 2000, "wait": 3000, "decode": 4000}
_STAGES = ("encode", "wait", "decode")


class _Lanes:
    """The threads of a track, numbered from a first one, so that no spans on one thread overlap."""

    def __init__(self, first: int):
        self.first, self.ends = first, list[int]()

    def take(self, start: int, end: int) -> int:
        """The thread for a span; spans are given in the order of their starts."""
        i = next((i for i, before in enumerate(self.ends) if before <= start), len(self.ends))
        self.ends[i : i + 1] = [end]
        return self.first + i


def write(program: Program, path: Path) -> None:
    """Write the file."""
    with path.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        for i, event in enumerate(events(program)):
            file.write((",\n" if i else "") + json.dumps(event, separators=(",", ":")))
        file.write("\n]}\n")


def events(program: Program) -> Iterator[dict[str, Any]]:
    """Trace events: complete ones ("X") in microseconds, and the names of processes and threads ("M")."""
    for rank in program.ranks:
        pid = rank.rank
        yield from _named("process", pid, 0, f"rank {pid} on {rank.head['host']}", pid)
        lanes = {track: _Lanes(first) for track, first in _TRACKS.items()}
        for call in rank.calls:
            yield from _of_call(pid, call, lanes)
        for track, lane in lanes.items():
            sums = ", sums within calls" if track in _STAGES else ""
            for i in range(len(lane.ends)):
                tid = _TRACKS[track] + i
                yield from _named("thread", pid, tid, f"{track}{f' {i + 1}' if i else ''}{sums}", tid)


def _of_call(pid: int, call: TracedCall, lanes: dict[str, _Lanes]) -> Iterator[dict[str, Any]]:
    # In whole nanoseconds, so that what ends when another begins does so in the file, too.
    start, total = round(1e9 * call.start), round(1e9 * call.total)
    category = "accelerated" if call.accelerated else "MPI"

    def span(name: str, track: str, begin: int, length: int, args: dict[str, Any]) -> dict[str, Any]:
        tid = lanes[track].take(begin, begin + length)
        about = {"ph": "X", "name": name, "cat": category, "pid": pid, "tid": tid, "args": args}
        return {**about, "ts": begin / 1000, "dur": length / 1000}

    micros = {stage: round(1e6 * getattr(call, stage), 3) for stage in _STAGES}
    args = {
        "communicator": f"{call.comm}, {plural(call.size, 'rank')}",
        "bytes": call.raw,
        "wire bytes": call.wire,
        "buffer": call.nbytes,
        "type": call.dtype,
        "codec": call.codec,
        "algorithm": call.algorithm,
        "fallbacks": call.fallbacks,
        "error bound": call.bound,
        "why": call.reason,
        "where": call.place,
        "problem": call.problem,
        **{f"{stage} us": value for stage, value in micros.items()},
    }
    yield span(call.op, "under way" if call.is_nonblocking else "calls", start, total, args)
    encode, wait, decode = (min(round(1e9 * getattr(call, stage)), total) for stage in _STAGES)
    lengths = {"encode": encode, "wait": wait, "decode": decode}
    begins = {"encode": 0, "wait": min(encode, total - wait), "decode": total - decode}
    for stage, length in lengths.items():
        if length > 0:
            sums = {"of": call.op, "sum over threads, us": micros[stage]}
            yield span(stage, stage, start + begins[stage], length, sums)


def _named(what: str, pid: int, tid: int, name: str, order: int) -> Iterator[dict[str, Any]]:
    """The name of a process or thread, and its place in the list."""
    for field, value in (("name", name), ("sort_index", order)):
        yield {"ph": "M", "name": f"{what}_{field}", "pid": pid, "tid": tid, "args": {field: value}}
