"""The table of trials in the user's cache: how calls of a kind went in earlier jobs on a machine.

Rank 0 of a communicator reads the table, and broadcasts its rows when the communicator is made; rank 0 of
COMM_WORLD writes the results of the job's trials. A row only decides on the first calls of a kind: it picks
among the ways that the policy would try. The table is a cache: a file that is damaged, or that other users
may have written, is ignored.

A table is a JSON document whose name derives from its entry ``about``:
``compcoll/table-1/<16 digits of the SHA-256 of "about">.json`` in ``$XDG_CACHE_HOME``.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from math import inf, log2
from pathlib import Path
from threading import RLock
from time import monotonic
from typing import Any

from compcoll.core import environment
from compcoll.operations import OPERATIONS
from compcoll.policy.pairs import Known

__all__ = [
    "About",
    "Row",
    "RowKind",
    "Rows",
    "Store",
    "folder",
    "half_octave",
    "store",
    "tables",
]

#: Bytes of the largest file that is read.
MOST_NBYTES = 1 << 20
#: Largest plausible count, time in seconds or fraction; times and fractions are also above its inverse.
LARGEST = 1e12
#: Number of newest rows that a file keeps; a row has some 500 bytes.
MOST_ROWS = 1000
#: Seconds between two writes of a job.
EACH_WRITE = 10.0

#: Operation, type, ranks of each node, codec, algorithm and levels of calls that differ only in size.
RowKind = tuple[str, str, tuple[int, ...], str, str, int]


def half_octave(nbytes: int) -> int:
    """The class of a size: half an octave is one class."""
    return round(2 * log2(max(nbytes, 1)))


@dataclass(frozen=True)
class About:
    """Facts that distinguish machines, networks and libraries, without host names."""

    compcoll: str
    mpi: str
    transport: str  # the variables by which MPI chooses it
    processors: tuple[str, ...]  # of all nodes
    cores_a_rank: float  # below 1 where ranks share cores
    memory: str  # "host" or "gpu"
    link_MBps_log2: int  # measured on the slowest link, in 10^6 bytes a second

    @property
    def name(self) -> str:
        """The name of the file."""
        words = json.dumps(asdict(self), sort_keys=True)
        return f"{sha256(words.encode()).hexdigest()[:16]}.json"


@dataclass(frozen=True)
class Row:
    """The outcome of a trial, as a table has it."""

    op: str
    type: str  # of real numbers
    ranks_a_node: tuple[int, ...]
    codec: str
    algorithm: str
    levels: int
    bytes: int  # of the largest message
    compress: bool  # whether compression won
    seconds: tuple[float, float]  # of a compressed call and of a plain one, from start to start
    in_call: tuple[float, float]  # the part within these calls
    share: float  # bytes that travel, as a part of the uncompressed ones
    pairs: tuple[int, int]  # of blocks: those that were counted, and those that compression won
    by: str = "trial"  # or "tune"
    made: str = ""  # when, in UTC

    @property
    def kind(self) -> RowKind:
        """Facts that the row shares with rows of other sizes."""
        return self.op, self.type, self.ranks_a_node, self.codec, self.algorithm, self.levels

    @property
    def key(self) -> tuple[RowKind, int]:
        """The kind and the size."""
        return self.kind, half_octave(self.bytes)

    @classmethod
    def of(cls, values: Any) -> Row:
        """Make a row from a JSON object; ValueError or TypeError if it is none."""
        known: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in values.items()
        }
        row = cls(**known)
        texts = row.op, row.type, row.codec, row.algorithm, row.by, row.made
        counts = row.bytes, row.levels, *row.ranks_a_node, *row.pairs
        figures = *row.seconds, *row.in_call, row.share
        good = (
            all(type(value) is str for value in texts)
            and all(type(value) is int and 0 <= value <= LARGEST for value in counts)
            and all(type(value) in (int, float) and 1 / LARGEST <= value <= LARGEST for value in figures)
            and type(row.compress) is bool
            and [len(row.seconds), len(row.in_call), len(row.pairs)] == [2, 2, 2]
            and len(row.ranks_a_node) > 0
        )
        if not good:
            raise ValueError("a row of it is damaged")
        return row

    def known(self) -> Known:
        """The outcome, for the calls of a job."""
        source = f"{self.by} of {self.made}"
        return Known(self.compress, self.seconds, self.in_call, self.share, self.pairs, source=source)


@dataclass(frozen=True)
class Rows:
    """Rows that all ranks of a communicator know."""

    all: Sequence[Row] = ()

    def find(self, kind: RowKind, nbytes: int) -> Known | None:
        """Find the way of a call: by the row of its size, or by two rows around it that agree."""
        sizes = {half_octave(row.bytes): row for row in self.all if row.kind == kind}
        size = half_octave(nbytes)
        if size in sizes:
            return sizes[size].known()
        below = max((other for other in sizes if other < size), default=None)
        above = min((other for other in sizes if other > size), default=None)
        if below is None or above is None or sizes[below].compress != sizes[above].compress:
            return None
        source = f"as calls of {sizes[below].bytes} and {sizes[above].bytes} bytes in earlier jobs"
        return Known(sizes[below].compress, source=source)

    def share(self, type: str, codec: str) -> float | None:
        """Find the largest compressed fraction of a type's values by a codec; None if no row has one."""
        return max((row.share for row in self.all if (row.type, row.codec) == (type, codec)), default=None)


def folder() -> Path | None:
    """The folder of the tables; None if there is none."""
    where = environment.table()
    if where not in (None, "read", "off"):
        return Path(str(where))
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    # A path still has its ~ where HOME is not set and the system knows of none.
    return None if where == "off" or base.startswith("~") else Path(base, "compcoll", "table-1")


def read_file(path: Path) -> tuple[About, list[Row]]:
    """Read the subject of a table and its rows; raises where it is none, or others may have written it."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        found = os.fstat(file.fileno())
        if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ValueError("users other than its owner may have written it")
        if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_NBYTES:
            raise ValueError(f"not a file of at most {MOST_NBYTES} bytes")
        document = json.loads(file.read())
    about = About(**document["about"])
    if about.name != path.name:
        raise ValueError(f"its name does not match its contents, whose name is {about.name}")
    return about, [Row.of(values) for values in document["rows"]]


def write_file(where: Path, about: About, rows: Iterable[Row]) -> None:
    """Replace a table atomically: readers get the old one or the new one."""
    where.mkdir(mode=0o700, parents=True, exist_ok=True)
    document = {"about": asdict(about), "rows": [asdict(row) for row in rows]}
    handle, temporary = tempfile.mkstemp(dir=where, prefix=".", suffix=".json")
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(document, file, indent=1, allow_nan=False)
        os.replace(temporary, where / about.name)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def tables() -> list[tuple[Path, About, list[Row]]]:
    """Read all tables in the folder."""
    where = folder()
    paths = sorted(where.glob("[!.]*.json")) if where is not None else []  # no file that is being written
    return [(path, *found) for path in paths if (found := store().load(path)) is not None]


class Store:
    """The tables, which this process reads, and to which it sometimes writes results of its trials.

    No error is raised, since only one rank calls this: a problem is printed once.
    """

    def __init__(self) -> None:
        #: Outcomes of this job's trials.
        self.made: dict[About, dict[tuple[RowKind, int], Row]] = {}
        self._written = -inf
        self._said = False
        self._lock = RLock()

    def rows(self, about: About) -> list[Row]:
        """The rows of a table, and those of this job."""
        where = folder()
        found = self.load(where / about.name) if where is not None else None
        rows = {row.key: row for row in found[1]} if found is not None else {}
        with self._lock:
            return list((rows | self.made.get(about, {})).values())

    def measured(self) -> list[dict[str, Any]]:
        """Outcomes of this job's trials, by the bytes of the buffer that a rank passes."""
        rows = [row for found in self.made.values() for row in found.values()]
        sizes = [sum(row.ranks_a_node) if OPERATIONS[row.op].shares_out else 1 for row in rows]
        return [asdict(row) | {"bytes": size * row.bytes} for size, row in zip(sizes, rows, strict=True)]

    def add(self, about: About, row: Row) -> None:
        """Keep the outcome of a trial, and write it if the last write was long ago."""
        with self._lock:
            if row.by == "tune" and any((one.key, one.by) == (row.key, "trial") for one in self.rows(about)):
                return
            self.made.setdefault(about, {})[row.key] = row
            if monotonic() - self._written > EACH_WRITE:
                self.write(last=False)

    def write(self, last: bool = True) -> None:
        """Merge the results of this job's trials into the files; the last write prints a problem."""
        if environment.table() in ("off", "read"):
            return
        with self._lock:
            self._written = monotonic()
            try:
                where = folder()
                if where is None:
                    raise OSError("there is no HOME")
                for about in self.made:
                    newest = sorted(self.rows(about), key=lambda row: row.made)[-MOST_ROWS:]
                    write_file(where, about, newest)
            except Exception as error:
                if last:
                    hint = "set COMPCOLL_TABLE to another folder, or to off"
                    self._say(f"what trials have found is not kept: {error}; {hint}")

    def load(self, path: Path) -> tuple[About, list[Row]] | None:
        """Read the subject of a table and its rows; None if there is no table."""
        try:
            return read_file(path)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except Exception as error:  # whatever others have written there
            self._say(f"the table of trials is not read: {error}")
        return None

    def _say(self, problem: str) -> None:
        if not self._said:
            self._said = True
            print(f"compcoll: {problem}", file=sys.stderr, flush=True)


@cache
def store() -> Store:
    """The store of this process."""
    return Store()
