"""Traces that tests write, and the command that reports on them."""

import json
import re
from collections import defaultdict

from click.testing import CliRunner

from compcoll.cli import main


def write_rank(
    folder,
    rank,
    size=2,
    *,
    calls=(),
    clocks=((0.0, 0.0), (10.0, 0.0)),
    run="a",
    date=1.0,
    end=True,
    job=None,
):
    """Write the file of a rank, and return its path.

    Calls are (start, seconds), or (start, seconds, fields); ``job`` has more fields of the first line and of
    comparisons of clocks.
    """
    head = {"trace": 1, "rank": rank, "size": size, "host": "h", "program": ["p"], "date": date, "at": 0.0}
    job = job or {}
    head |= job
    lines = [head, *({"clock": at, "offset": off, "ping": 1e-6, "run": run} | job for at, off in clocks)]
    lines += [
        {
            "op": "Alltoall",
            "comm": "c",
            "size": size,
            "nbytes": 4096,
            "bytes": 100,
            "wire_bytes": 50,
            "accelerated": True,
            "reason": "",
            "codec": "mpc",
            "start": start,
            "total": seconds,
            "encode": 0.25 * seconds,
            "decode": 9 * seconds,
            "wait": 0.5 * seconds,
            "file": "p.py",
            "line": 3,
        }
        | (more[0] if more else {})
        for start, seconds, *more in calls
    ]
    lines += [{"end": len(calls), "failed": False, "at": 9.0}] if end else []
    path = folder / f"rank{rank:05d}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def report(folder, out=None):
    """Output of `compcoll report`, and its status."""
    words = ["report", str(folder), *(["--out", str(out)] if out else [])]
    return CliRunner(env={"COLUMNS": "80"}).invoke(main, words)


def check_events(file):
    """Check the fields of trace events, and that events of a thread do not overlap; return their spans."""
    assert set(file) == {"displayTimeUnit", "traceEvents"}
    spans, named = defaultdict(list), set()
    for event in file["traceEvents"]:
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert isinstance(event["args"], dict)
        if event["ph"] == "M":
            assert re.fullmatch("(process|thread)_(name|sort_index)", event["name"])
            named.add((event["pid"], event["tid"]))
        else:
            assert event["ph"] == "X"
            assert event["name"]
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            span = round(1e3 * event["ts"]), round(1e3 * event["dur"])
            spans[event["pid"], event["tid"]].append(span)
    assert set(spans) <= named
    for some in spans.values():
        for (start, length), (after, _) in zip(sorted(some), sorted(some)[1:], strict=False):
            assert start + length <= after
    return spans
