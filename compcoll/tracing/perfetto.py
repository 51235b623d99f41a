"""The trace-event file that Perfetto and chrome://tracing open: ranks are processes.

Calls are on the track ``calls``, nonblocking ones, from their beginning until they were complete, on tracks
``under way``. What is known of encoding, decoding and waiting is their sum within a call: it is drawn on
tracks of their own, within the span of the call, encoding from its beginning, decoding until its end, and
waiting in between.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from compcoll.tracing.reader import Call, Program

__all__ = ["events", "write"]

#: Tracks of a rank and the numbers of their first threads; calls that overlap take the next ones.
_TRACKS = {"calls": 0, "under way": 1000, "encode": 2000, "wait": 3000, "decode": 4000}
_STAGES = ("encode", "wait", "decode")


class _Lanes:
    """The threads of a track, so that nothing on one of them overlaps."""

    def __init__(self, track: str):
        self.track, self.ends = track, list[int]()

    def take(self, start: int, end: int) -> int:
        """The thread for something, given in order of beginnings."""
        i = next((i for i, before in enumerate(self.ends) if before <= start), len(self.ends))
        if i == len(self.ends):
            self.ends.append(0)
        self.ends[i] = end
        return _TRACKS[self.track] + i


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
        pid, host = rank.rank, rank.head.get("host", "")
        yield _named("process_name", pid, 0, f"rank {pid} on {host}")
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}}
        lanes = {track: _Lanes(track) for track in _TRACKS}
        for call in rank.calls:
            yield from _of_call(pid, call, lanes)
        for track in lanes.values():
            sums = ", sums within calls" if track.track in _STAGES else ""
            for i in range(len(track.ends)):
                tid = _TRACKS[track.track] + i
                yield _named("thread_name", pid, tid, f"{track.track}{f' {i + 1}' if i else ''}{sums}")
                order = {"sort_index": tid}
                yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": order}


def _of_call(pid: int, call: Call, lanes: dict[str, _Lanes]) -> Iterator[dict[str, Any]]:
    # In whole nanoseconds, so that what ends when another begins does so in the file, too.
    start, total = round(1e9 * call.start), round(1e9 * call.total)
    args = {
        "communicator": f"{call.comm}, {call.size} ranks",
        "bytes": call.raw,
        "wire bytes": call.wire,
        "buffer": call.nbytes,
        "codec": call.codec,
        "fallbacks": call.fallbacks,
        "error bound": call.bound,
        "why": call.reason,
        "where": call.place,
        "problem": call.problem,
        **{f"{stage} us": round(1e6 * getattr(call, stage), 3) for stage in _STAGES},
    }
    tid = lanes["under way" if call.is_nonblocking else "calls"].take(start, start + total)
    category = "accelerated" if call.accelerated else "MPI"
    yield _span(call.op, category, pid, tid, start, total, args)
    for stage, (begin, nanoseconds) in _laid_out(call, start, total).items():
        tid = lanes[stage].take(begin, begin + nanoseconds)
        about = {"of": call.op, "sum over threads, us": round(1e6 * getattr(call, stage), 3)}
        yield _span(stage, category, pid, tid, begin, nanoseconds, about)


def _laid_out(call: Call, start: int, total: int) -> dict[str, tuple[int, int]]:
    """Start and length of the stages' sums within the call, no longer than it."""
    encode, wait, decode = (min(round(1e9 * getattr(call, stage)), total) for stage in _STAGES)
    middle = min(start + encode, start + total - wait)
    spans = {
        "encode": (start, encode),
        "wait": (middle, wait),
        "decode": (start + total - decode, decode),
    }
    return {stage: span for stage, span in spans.items() if span[1] > 0}


def _span(
    name: str, category: str, pid: int, tid: int, start: int, nanoseconds: int, args: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": pid,
        "tid": tid,
        "ts": start / 1000,
        "dur": nanoseconds / 1000,
        "args": args,
    }


def _named(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}
