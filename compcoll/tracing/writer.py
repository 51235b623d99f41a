"""The trace file of a rank, which `compcoll.tracing.recording` writes: a line of JSON for each call.

The first line identifies the file's rank and program (``trace``: the version of the format); rank 0's has
``versions``, too. Lines with ``clock``, near the beginning and the end, have the offset of that rank's clock
from rank 0's; rank 0's first one has ``nodes``, the node of each rank, and ``link``, the measured bytes a
second, or 0, and ``cores``, those of a rank. Nothing of the environment is written. A line ``rows``
before the last one has the times of calls that were measured both ways. Lines ``samples`` have the speed,
ratio and error of codecs on some values of calls, as in `compcoll.tracing.samples`. The last line has
``end``: the number of calls written, and a flag for a program that failed. The line of a call has

=================  ============================================================================
``op``             the method
``comm``, ``size`` name of the communicator, else its class; its ranks
``file``, ``line`` where the program called; a program in C has the symbol of a function for the line
``dtype``          NumPy's name of its elements; null if it has none, or the call no values
``nbytes``         of the buffer that the call is about; 0 where its arguments do not tell
``accelerated``    false where the call went to MPI unchanged
``reason``         why it ran as it did
``bytes``          that would have left this rank uncompressed
``wire_bytes``     that left it, headers included
``start``          seconds, of this rank's clock
``returned``       of a nonblocking call the seconds until its method had returned
``total``          seconds that the call took
``problem``        the type of the exception that was raised, if one was
=================  ============================================================================

and, where it was accelerated, ``codec``, ``algorithm``, ``codecs``, ``dimensions``, ``fallbacks``,
``error_bound`` (null if it is not known), and the seconds ``encode``, ``decode`` and ``wait``, as in
`compcoll.Report`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from functools import lru_cache
from json import dumps
from math import inf
from pathlib import Path
from platform import node
from typing import Any

from compcoll.core.dtypes import dtype_of
from compcoll.engine.report import describe
from compcoll.tracing import VERSION
from compcoll.tracing.exchange import Reading
from compcoll.tracing.records import Record, Site

__all__ = ["Trace"]


class Trace:
    """The file of a rank in a folder.

    Parameters
    ----------
    folder : Path
    rank, size : int
        Rank and size in the world.
    versions : dict of str to str, optional
        Versions of libraries by their names.

    Raises
    ------
    FileExistsError
        If the folder has a file of this rank: another program's, which may still run.
    OSError
        If it cannot be written.
    """

    def __init__(self, folder: Path, rank: int, size: int, versions: dict[str, str] | None = None):
        self._calls = 0
        self._path = folder.resolve() / f"rank{rank:05d}.jsonl"
        try:
            self._file = self._path.open("x", encoding="utf-8")
        except FileExistsError:
            raise FileExistsError(
                f"{self._path} exists, and a folder has the trace of one program: name another folder, or "
                "remove this one's files"
            ) from None
        # Written later, with the first other line, when `sys.argv` is the program's.
        self._head: dict[str, Any] | None = {"trace": VERSION, "rank": rank, "size": size}
        if versions:
            self._head["versions"] = versions

    def add(self, records: Iterable[tuple[Record, Site]]) -> None:
        """Write calls and flush them, so that a killed program keeps them."""
        lines = [_line(*pair) for pair in records]
        self._calls += len(lines)
        self._write("".join(lines))

    def add_clock(self, run: str, reading: Reading, job: dict[str, Any]) -> None:
        """Write this clock's offset, the identifier that all ranks share, and facts of the job."""
        fields = {"clock": reading.at, "offset": reading.offset, "ping": reading.ping, "run": run, **job}
        self._write(dumps(fields) + "\n")

    def add_lists(self, **lists: list[dict[str, Any]]) -> None:
        """Write ``rows``, times of calls that were measured both ways, or ``samples``; nothing if empty."""
        for name, entries in lists.items():
            if entries:
                self._write(dumps({name: entries}) + "\n")

    def close(self, failed: bool) -> None:
        """Write the last line; a program that has failed before any call leaves no file."""
        if failed and self._head is not None:
            self._file.close()
            self._path.unlink(missing_ok=True)
            return
        self._write(dumps({"end": self._calls, "failed": failed, "at": time.perf_counter()}) + "\n")
        self._file.close()

    def _write(self, text: str) -> None:
        if self._head is not None:
            about = {"host": node(), "pid": os.getpid(), "program": sys.argv, "command": _command()}
            now = {"date": time.time(), "at": time.perf_counter()}
            text = dumps({**self._head, **about, **now}) + "\n" + text
            self._head = None
        self._file.write(text)
        self._file.flush()


def _line(record: Record, site: Site) -> str:
    """The line of a call; this takes a microsecond if MPI served it."""
    if record.accelerated:
        text = _shared(record.method, site, record.element, record.nbytes, None, 0) + _accelerated(record)
    else:
        reason = site.reason_of(record)
        text = _shared(record.method, site, record.element, record.nbytes, reason, record.unchanged_nbytes)
    if record.is_open or record.failed:
        text += f',"problem":"{"unfinished" if record.is_open else "Exception"}"'
    if record.returned != record.end:
        text += f',"returned":{record.returned - record.start:.9f}'
    return f'{text},"start":{record.start:.9f},"total":{record.end - record.start:.9f}}}\n'


@lru_cache(4096)
def _shared(method: str, site: Site, element: int, nbytes: int, reason: str | None, sent: int) -> str:
    """The beginning of the line of equal calls; calls of plain MPI have a reason."""
    fields: dict[str, Any] = {
        "op": method,
        "comm": site.comm.name,
        "size": site.comm.size,
        "file": site.file,
        "line": site.line,
        "dtype": str(dtype_of(element)) if element else None,
        "nbytes": nbytes,
    }
    if reason is not None:
        fields |= {"accelerated": False, "reason": reason, "bytes": sent, "wire_bytes": sent}
    return dumps(fields)[:-1]


def _accelerated(record: Record) -> str:
    """The fields of an accelerated call."""
    report = describe(*record.last)
    fields = {
        "accelerated": True,
        "reason": report.reason,
        "codec": report.codec,
        "algorithm": report.algorithm,
        "codecs": report.codecs,
        "dimensions": report.dimensions,
        "bytes": report.raw_nbytes,
        "wire_bytes": report.wire_nbytes,
        "fallbacks": report.fallbacks,
        "error_bound": None if report.error_bound == inf else report.error_bound,
        **{stage: report.seconds[stage] for stage in ("encode", "decode", "wait")},
    }
    return "," + dumps(fields)[1:-1]


def _command() -> list[str]:
    """The words that started this process; the interpreter in a program in C does not know them."""
    return [os.fsdecode(word) for word in Path("/proc/self/cmdline").read_bytes().split(b"\0")[:-1]]
