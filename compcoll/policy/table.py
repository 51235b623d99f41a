"""The table of trials in the user's cache: how calls of a kind went in earlier jobs on a machine.

Rank 0 of a communicator reads it, and its rows travel to the others as the communicator is made; rank 0 of
COMM_WORLD writes what trials of the job have found. A row says how the first calls of a kind go, and never
more: it picks among the ways that the policy would try. A file, or a row, that is broken is left out.

A table is a JSON document by the name of what it is about:
``compcoll/table-1/<16 digits of the SHA-256 of "about">.json`` in ``$XDG_CACHE_HOME``.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from math import inf, log2
from pathlib import Path
from threading import RLock
from time import monotonic
from typing import Any, NamedTuple

from compcoll.core import environment
from compcoll.policy.trial import Known

__all__ = [
    "About",
    "Row",
    "RowKind",
    "Rows",
    "Store",
    "folder",
    "half_octave",
    "read_file",
    "store",
    "tables",
]

SCHEMA = 1
#: Bytes of the largest file that is read.
MOST_NBYTES = 1 << 20
#: The largest time in microseconds, or ratio, that is believed.
LARGEST = 1e12
#: Rows that a file keeps, the newest ones; a row has some 700 bytes.
MOST_ROWS = 1000
#: Seconds between two writes of a job.
EACH_WRITE = 10.0


def half_octave(nbytes: int) -> int:
    """The class of a size: half an octave is one class."""
    return round(2 * log2(max(nbytes, 1)))


@dataclass(frozen=True)
class About:
    """Facts that tell machines, networks and libraries apart; without the name of any host.

    Attributes
    ----------
    compcoll, codecs, mpi, transport : str
        Versions, and the variables by which MPI chooses its transport.
    processors : tuple of str
        Of all nodes.
    cores_a_rank : float
        Below 1 where ranks share cores.
    memory : {"host", "gpu"}
    link_MBps_log2 : int
        The measured bandwidth of the slowest link, in 10^6 bytes a second.
    """

    compcoll: str
    codecs: str
    mpi: str
    transport: str
    processors: tuple[str, ...]
    cores_a_rank: float
    memory: str
    link_MBps_log2: int
    schema: int = SCHEMA

    @property
    def name(self) -> str:
        """The name of the file."""
        words = json.dumps(asdict(self), sort_keys=True)
        return f"{sha256(words.encode()).hexdigest()[:16]}.json"


class RowKind(NamedTuple):
    """Calls that differ in size alone; see `Row`."""

    op: str
    form: str
    type: str
    shape: tuple[int, tuple[int, ...]]  # nodes, and ranks on each
    tried: str
    algorithm: str
    levels: int


@dataclass(frozen=True)
class Row:
    """The outcome of a trial, as a table has it.

    Attributes
    ----------
    op, form, type : str
        Method, ``"blocking"``, and the type of real numbers.
    bytes, nodes : int
        Of the largest message, and of nodes.
    ranks_a_node : tuple of int
    tried : str
        The policy's codec.
    way : tuple
        Codec, algorithm, bytes of a chunk and levels of the compressed way.
    compress : bool
        Whether compression won.
    us, call_us : tuple of float
        Microseconds of a compressed call and of a plain one from start to start, and in the call.
    ratio : float
    pairs : tuple of int
        Pairs of blocks that were counted, and those that compression won.
    spread : float
    by : {"trial", "tune"}
    made : str
        When, in UTC.
    confirmed : int
        Jobs that have found it so.
    """

    op: str
    type: str
    bytes: int
    nodes: int
    ranks_a_node: tuple[int, ...]
    tried: str
    way: tuple[str, str, int, int]
    compress: bool
    us: tuple[float, float]
    call_us: tuple[float, float]
    ratio: float
    pairs: tuple[int, int]
    spread: float
    by: str = "trial"
    form: str = "blocking"
    made: str = ""
    confirmed: int = 0

    @property
    def kind(self) -> RowKind:
        """Facts that calls have in common which go by the row or by one of another size."""
        _, algorithm, _, levels = self.way
        shape = self.nodes, self.ranks_a_node
        return RowKind(self.op, self.form, self.type, shape, self.tried, algorithm, levels)

    @property
    def key(self) -> tuple[RowKind, int]:
        """The kind and the size."""
        return self.kind, half_octave(self.bytes)

    @classmethod
    def of(cls, values: Any) -> Row:
        """Make a row from a JSON object; ValueError or TypeError where it is none."""
        known: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        row = cls(**known)
        for field in fields(cls):
            _check(field.name, str(field.type), getattr(row, field.name))
        return row

    def known(self) -> Known:
        """The outcome, for the calls of a job."""
        age = (datetime.now(UTC) - datetime.fromisoformat(self.made)).total_seconds() if self.made else 0.0
        source = f"{self.by} of {self.made or 'this job'}"
        if age > 86400:
            source += f", {age / 86400:.0f} days ago"
        us, in_call = ((1e-6 * x, 1e-6 * y) for x, y in (self.us, self.call_us))
        return Known(self.compress, us, in_call, 1 / self.ratio, self.pairs, self.spread, source)


def _check(name: str, kind: str, value: Any) -> None:
    """ValueError where a value of a row is of another type, or out of bounds."""
    good = {
        "str": lambda v: isinstance(v, str) and len(v) < 200,
        "bool": lambda v: isinstance(v, bool),
        "int": _is_count,
        "float": _is_figure,
        "tuple[int, ...]": lambda v: isinstance(v, tuple) and bool(v) and all(map(_is_count, v)),
        "tuple[int, int]": lambda v: _is_pair(v) and all(map(_is_count, v)),
        "tuple[float, float]": lambda v: _is_pair(v) and all(map(_is_figure, v)) and min(v) > 0,
        "tuple[str, str, int, int]": lambda v: (
            isinstance(v, tuple) and [type(one) for one in v] == [str, str, int, int]
        ),
    }[kind]
    if not good(value) or (name == "ratio" and not value > 1 / LARGEST):
        raise ValueError(f"{name} = {value!r}")
    if name == "made" and value and datetime.fromisoformat(value).tzinfo is None:
        raise ValueError(f"{name} = {value!r} has no time zone")


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def _is_figure(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LARGEST


class Rows:
    """Rows that all ranks of a communicator know, by kind and size."""

    def __init__(self, rows: Iterable[Row] = ()):
        self._rows: dict[RowKind, dict[int, Row]] = {}
        self.all = list(rows)
        for row in self.all:
            self._rows.setdefault(row.kind, {})[half_octave(row.bytes)] = row

    def find(self, kind: RowKind, nbytes: int) -> Known | None:
        """Find how a call of so many bytes goes: by its row, or as two rows around it that agree."""
        sizes, size = self._rows.get(kind, {}), half_octave(nbytes)
        if size in sizes:
            return sizes[size].known()
        below = max((other for other in sizes if other < size), default=None)
        above = min((other for other in sizes if other > size), default=None)
        if below is None or above is None or sizes[below].compress != sizes[above].compress:
            return None
        source = f"as calls of {sizes[below].bytes} and {sizes[above].bytes} bytes in earlier jobs"
        return Known(sizes[below].compress, source=source)

    def ratio(self, type: str, tried: str) -> float | None:
        """Find the least ratio of a codec on values of a type; None where no row has one."""
        return min((row.ratio for row in self.all if (row.type, row.tried) == (type, tried)), default=None)


# -- files


def folder() -> Path | None:
    """The folder of the tables; None where there is none."""
    where = environment.table()
    if where == "off":
        return None
    if where not in (None, "read"):
        return Path(str(where))
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # HOME is not set, nor does the system know of one
        return None
    return base / "compcoll" / f"table-{SCHEMA}"


def read_file(path: Path) -> tuple[dict[str, Any], list[Row]]:
    """Read a table; what it is about, and the rows of it that are sound.

    Raises
    ------
    OSError, ValueError
        Where it cannot be read, is no table, or somebody else may have written it.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        about_file = os.fstat(file.fileno())
        if about_file.st_uid != os.getuid() or about_file.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ValueError("others than its owner may have written it")
        if not stat.S_ISREG(about_file.st_mode) or about_file.st_size > MOST_NBYTES:
            raise ValueError(f"not a file of at most {MOST_NBYTES} bytes")
        found = json.loads(file.read(), parse_constant=_refuse)
    if not isinstance(found, dict) or not isinstance(found.get("about"), dict):
        raise ValueError("not a table")
    if found["about"].get("schema") != SCHEMA or not isinstance(found.get("rows"), list):
        raise ValueError("a table of another version")
    rows = []
    for values in found["rows"]:
        try:
            rows.append(Row.of(values))
        except (TypeError, ValueError, AttributeError):
            continue
    return found["about"], rows


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is no number")


def write_file(path: Path, about: Mapping[str, Any], rows: Iterable[Row]) -> None:
    """Put a table into its place at once: whoever reads meets the old one or the new one."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    document = {"about": dict(about), "rows": [asdict(row) for row in rows]}
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".json")
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(document, file, indent=1, allow_nan=False)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def tables() -> list[tuple[Path, dict[str, Any], list[Row]]]:
    """All tables of the folder that can be read, with what they are about."""
    where, found = folder(), []
    paths = sorted(where.glob("*.json")) if where is not None else []
    for path in (path for path in paths if not path.name.startswith(".")):  # which is being written
        try:
            found.append((path, *read_file(path)))
        except (OSError, ValueError, RecursionError):
            continue
    return found


# -- the store of a process


class Store:
    """Tables of this process: each is read once, and what trials find is written now and then.

    Nothing is raised, since one rank alone comes here: a problem is said once.
    """

    def __init__(self) -> None:
        self._read: dict[About, dict[tuple, Row]] = {}
        self._new: dict[About, dict[tuple, Row]] = {}
        #: Outcomes of this job's trials.
        self.made: dict[tuple, Row] = {}
        self._written = -inf
        self._said = False
        self._lock = RLock()

    def rows(self, about: About) -> list[Row]:
        """The rows of a table, and those of this job."""
        with self._lock:
            if about not in self._read:
                self._read[about] = {row.key: row for row in self._load(about)}
            return list((self._read[about] | self._new.get(about, {})).values())

    def add(self, about: About, row: Row) -> None:
        """Keep the outcome of a trial, and write it where the last write was long ago."""
        with self._lock:
            known = next((one for one in self.rows(about) if one.key == row.key), None)
            if known is not None and known.by == "trial" and row.by == "tune":
                return
            if known is not None and known.compress == row.compress:
                row = replace(row, confirmed=known.confirmed + 1)
            self._new.setdefault(about, {})[row.key] = self.made[row.key] = row
            if monotonic() - self._written > EACH_WRITE:
                self.write()

    def write(self) -> None:
        """Merge what is new into the files."""
        with self._lock:
            self._written = monotonic()
            if environment.table() in ("off", "read") or not self._new:
                return
            try:
                where = folder()
                if where is None:
                    raise OSError("there is no HOME; COMPCOLL_TABLE names another folder")
                for about in list(self._new):
                    new = self._new.pop(about)
                    merged = {row.key: row for row in self._load(about)} | new
                    self._read[about] = self._read.get(about, {}) | merged
                    newest = sorted(merged.values(), key=lambda row: row.made)[-MOST_ROWS:]
                    write_file(where / about.name, asdict(about), newest)
            except Exception as error:
                self._say(f"what trials have found is not kept: {error}")

    def _load(self, about: About) -> list[Row]:
        try:
            where = folder()
            if where is None:
                return []
            _, rows = read_file(where / about.name)
        except FileNotFoundError:
            return []
        except Exception as error:  # whatever others have written there
            self._say(f"the table of trials is not read: {error}")
            return []
        return rows

    def _say(self, problem: str) -> None:
        if not self._said:
            self._said = True
            print(f"compcoll: {problem}", file=sys.stderr, flush=True)


@cache
def store() -> Store:
    """The store of this process."""
    return Store()
