"""The table of trials in the user's cache: how calls of a kind went in earlier jobs on a machine.

Rank 0 of a communicator reads the table, and broadcasts its rows when the communicator is made; rank 0 of
COMM_WORLD writes the results of the job's trials. A row only decides on the first calls of a kind: it picks
among the ways that the policy would try. The table is a cache: a file that is damaged, or that other users
may have written, is ignored.

A table is a JSON document whose name derives from its entry ``about``:
``compcoll/table-1/<16 digits of the SHA-256 of "about">.json`` in ``$XDG_CACHE_HOME``. Its entry ``begun``
has the pairs of trials that the end of a job cut off, so that the next job goes on from them.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from hashlib import sha256
from math import inf, log2
from pathlib import Path
from threading import RLock
from time import monotonic
from typing import Any

from compcoll.core import environment
from compcoll.operations import OPERATIONS
from compcoll.policy.pairs import Figures, Known
from compcoll.policy.trial import MOST_PAIRS

__all__ = [
    "About",
    "Begun",
    "Row",
    "RowKind",
    "Rows",
    "Store",
    "folder",
    "half_octave",
    "store",
    "tables",
]

#: Bytes of the largest file that is read; a full one of 1,000 nodes has some 9 MB.
MOST_NBYTES = 16 << 20
#: Largest plausible count, time in seconds or fraction; times and fractions are also above its inverse.
LARGEST = 1e12
#: Number of newest rows and of newest begun trials that a file keeps; they have some 500 and 1,500 bytes.
MOST_ROWS, MOST_BEGUN = 1000, 200
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
class _Call:
    """Facts of calls that a trial is about."""

    op: str
    type: str  # of real numbers
    ranks_a_node: tuple[int, ...]
    codec: str
    algorithm: str
    levels: int
    bytes: int  # of the largest message

    @property
    def kind(self) -> RowKind:
        """Facts that calls share with those of other sizes."""
        return self.op, self.type, self.ranks_a_node, self.codec, self.algorithm, self.levels

    @property
    def key(self) -> tuple[RowKind, int]:
        """The kind and the size."""
        return self.kind, half_octave(self.bytes)


@dataclass(frozen=True)
class Begun(_Call):
    """The pairs of a trial that has not ended, as a table has them."""

    pairs: tuple[Figures, ...] = ()
    made: str = ""  # when, in UTC

    @classmethod
    def of(cls, values: Any) -> Begun:
        """Make it from a JSON object; ValueError or TypeError if it is none."""
        begun = cls(**{**_fields(values), "pairs": tuple(map(tuple, values["pairs"]))})
        _check(begun, (begun.made,), (), [figure for pair in begun.pairs for figure in pair])
        if not 1 <= len(begun.pairs) <= MOST_PAIRS or {len(pair) for pair in begun.pairs} != {5}:
            raise ValueError("a begun trial of it is damaged")
        return begun


@dataclass(frozen=True)
class Row(_Call):
    """The outcome of a trial, as a table has it."""

    compress: bool  # whether compression won
    seconds: tuple[float, float]  # of a compressed call and of a plain one, from start to start
    in_call: tuple[float, float]  # the part within these calls
    share: float  # bytes that travel, as a part of the uncompressed ones
    pairs: tuple[int, int]  # of blocks: those that were counted, and those that compression won
    by: str = "trial"  # or "tune"
    made: str = ""  # when, in UTC

    @classmethod
    def of(cls, values: Any) -> Row:
        """Make a row from a JSON object; ValueError or TypeError if it is none."""
        row = cls(**_fields(values))
        _check(row, (row.by, row.made), row.pairs, (*row.seconds, *row.in_call, row.share))
        lengths = [len(row.seconds), len(row.in_call), len(row.pairs)]
        if type(row.compress) is not bool or lengths != [2, 2, 2]:
            raise ValueError("a row of it is damaged")
        return row

    def known(self) -> Known:
        """The outcome, for the calls of a job."""
        source = f"{self.by} of {self.made}"
        return Known(self.compress, self.seconds, self.in_call, self.share, self.pairs, source=source)


def _fields(values: dict[str, Any]) -> dict[str, Any]:
    """Attributes by a JSON object, whose lists are tuples."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}


def _check(call: _Call, texts: Sequence[Any], counts: Sequence[Any], figures: Sequence[Any]) -> None:
    """Raise ValueError unless these attributes of a row or a begun trial are sound, and those of its call."""
    texts = call.op, call.type, call.codec, call.algorithm, *texts
    counts = call.bytes, call.levels, *call.ranks_a_node, *counts
    good = (
        all(type(value) is str for value in texts)
        and all(type(value) is int and 0 <= value <= LARGEST for value in counts)
        and all(map(_is_plausible, figures))
        and len(call.ranks_a_node) > 0
    )
    if not good:
        raise ValueError("a row of it is damaged")


def _is_plausible(figure: Any) -> bool:
    return type(figure) in (int, float) and 1 / LARGEST <= figure <= LARGEST


@dataclass(frozen=True)
class Rows:
    """Rows that all ranks of a communicator know, and trials that earlier jobs have begun."""

    all: Sequence[Row] = ()
    begun: Sequence[Begun] = ()

    def find_begun(self, kind: RowKind, nbytes: int) -> tuple[Figures, ...]:
        """Find the pairs of a trial that an earlier job has begun; empty if there is none."""
        key = kind, half_octave(nbytes)
        return next((one.pairs for one in self.begun if one.key == key), ())

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


def read_file(path: Path) -> tuple[About, Rows]:
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
    # Tables of earlier versions have no begun trials.
    begun = [Begun.of(values) for values in document.get("begun", ())]
    return about, Rows([Row.of(values) for values in document["rows"]], begun)


def write_file(where: Path, about: About, rows: Iterable[Row], begun: Iterable[Begun] = ()) -> None:
    """Replace a table atomically: readers get the old one or the new one."""
    where.mkdir(mode=0o700, parents=True, exist_ok=True)
    document = {"about": asdict(about), "rows": list(map(asdict, rows)), "begun": list(map(asdict, begun))}
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
    found = [(path, store().load(path)) for path in paths]
    return [(path, one[0], list(one[1].all)) for path, one in found if one is not None]


class Store:
    """The tables, which this process reads, and to which it sometimes writes results of its trials.

    No error is raised, since only one rank calls this: a problem is printed once.
    """

    def __init__(self) -> None:
        #: Outcomes of this job's trials.
        self.made: dict[About, dict[tuple[RowKind, int], Row]] = {}
        #: Trials that this job has begun; None where the trial has ended.
        self._begun: dict[About, dict[tuple[RowKind, int], Begun | None]] = {}
        self._written = -inf
        self._said = False
        self._lock = RLock()

    def found(self, about: About) -> Rows:
        """The rows of a table and its begun trials, and those of this job."""
        where = folder()
        found = self.load(where / about.name) if where is not None else None
        old = found[1] if found is not None else Rows()
        with self._lock:
            rows = {row.key: row for row in old.all} | self.made.get(about, {})
            begun = {one.key: one for one in old.begun} | self._begun.get(about, {})
        return Rows(list(rows.values()), [one for one in begun.values() if one is not None])

    def rows(self, about: About) -> list[Row]:
        """The rows of a table, and those of this job."""
        return list(self.found(about).all)

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

    def begin(self, about: About, begun: Begun) -> None:
        """Keep the pairs of a trial until it ends."""
        sound = tuple(pair for pair in begun.pairs if all(map(_is_plausible, pair)))
        with self._lock:
            self._begun.setdefault(about, {})[begun.key] = replace(begun, pairs=sound) if sound else None

    def end(self, about: About, begun: Begun) -> None:
        """Forget the pairs of a trial that has ended."""
        with self._lock:
            self._begun.setdefault(about, {})[begun.key] = None

    def write(self, last: bool = True) -> None:
        """Merge the results of this job's trials into the files; the last write prints a problem."""
        if environment.table() in ("off", "read") or environment.pretends_nodes():
            return
        with self._lock:
            self._written = monotonic()
            try:
                where = folder()
                if where is None:
                    raise OSError("there is no HOME")
                for about in self.made | self._begun:
                    found = self.found(about)
                    rows = sorted(found.all, key=lambda row: row.made)[-MOST_ROWS:]
                    begun = sorted(found.begun, key=lambda one: one.made)[-MOST_BEGUN:]
                    write_file(where, about, rows, begun)
            except Exception as error:
                if last:
                    hint = "set COMPCOLL_TABLE to another folder, or to off"
                    self._say(f"what trials have found is not kept: {error}; {hint}")

    def load(self, path: Path) -> tuple[About, Rows] | None:
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
