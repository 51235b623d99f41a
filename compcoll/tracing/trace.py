"""The file that a rank writes: a line of JSON for each call, and a few about itself.

The first line says of which rank and program it is (``trace``: the version of the format). A line with
``clock`` says how far that rank's clock was off from rank 0's: they stand near the beginning and the end.
The last has ``end``: how many calls were written, and whether the program failed.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from json import dumps
from pathlib import Path
from platform import node
from typing import Any

from compcoll.tracing import VERSION
from compcoll.tracing.clock import Reading
from compcoll.tracing.lines import Lines

__all__ = ["Trace"]


class Trace:
    """A rank's file in a folder.

    Parameters
    ----------
    folder : Path
    rank, size : int
        Of the world.
    """

    def __init__(self, folder: Path, rank: int, size: int):
        self._lines, self._calls, self._headed = Lines(), 0, False
        self._rank, self._size = rank, size
        self._file = (folder.resolve() / f"rank{rank:05d}.jsonl").open("w", encoding="utf-8")

    def add(self, records: Iterable[Any]) -> None:
        """Write calls, so that they stay where the program is killed."""
        lines = [self._lines.of(record) for record in records]
        self._calls += len(lines)
        self._write("".join(lines))

    def note_clock(self, run: str, reading: Reading) -> None:
        """Write how far this clock is off, and an identifier that all ranks of the program have."""
        fields = {"clock": reading.at, "offset": reading.offset, "ping": reading.ping, "run": run}
        self._write(dumps(fields) + "\n")

    def close(self, failed: bool) -> None:
        """Write the last line."""
        self._write(dumps({"end": self._calls, "failed": failed, "at": time.perf_counter()}) + "\n")
        self._file.close()

    def _write(self, text: str) -> None:
        if not self._headed:
            self._headed = True
            head = {
                "trace": VERSION,
                "rank": self._rank,
                "size": self._size,
                "host": node(),
                "pid": os.getpid(),
                "program": sys.argv,
                "date": time.time(),
                "at": time.perf_counter(),
            }
            text = dumps(head) + "\n" + text
        self._file.write(text)
        self._file.flush()
