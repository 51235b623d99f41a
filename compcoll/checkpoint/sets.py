"""Sets of files: writing them atomically, finding them, fetching them from any rank, assembling arrays.

``SET/rank-R.cck`` is a rank's own file, ``copy-R.cck`` its partner's copy. A set's name has its step and the
time, so files of two attempts at a step are never mixed. A set is complete if a sound file of each rank is
found anywhere; there is no separate mark that could be wrong.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI
from mpi4py.util import pkl5

from compcoll.checkpoint import file
from compcoll.core.errors import FrameError

__all__ = [
    "Box",
    "Found",
    "Headers",
    "assemble",
    "boxes",
    "fetch",
    "headers_of",
    "job_of",
    "names",
    "owners",
    "remove",
    "scan",
    "set_name",
    "sound",
    "write",
]

_SET = re.compile(r"step-(\d+)-([0-9a-f]{16})")
_FILE = re.compile(r"(rank|copy)-(\d+)\.cck")

#: The headers of a set's files, by rank.
Headers = Mapping[int, dict[str, Any]]
#: Offset and shape of a part of an array.
Box = tuple[tuple[int, ...], tuple[int, ...]]
#: The set and the rank of a file.
Need = tuple[str, int]


class Found(NamedTuple):
    """A file of a set with the values of ``rank``; rank ``reader`` can read it, or any rank if that is -1.

    The header is None if there is a problem.
    """

    set: str
    rank: int
    path: str
    reader: int
    header: dict[str, Any] | None
    problem: str = ""


# -- folders


def set_name(step: int, word: int) -> str:
    """The name of a set, by which sets are ordered."""
    return f"step-{step:012d}-{word:016x}"


def write(folder: str, name: str, data: np.ndarray) -> None:
    """Write a file under another name, sync it to the disk, and rename it; OSError."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, name)
    beside = f"{path}.{os.getpid()}.tmp"
    try:
        with open(beside, "wb") as opened:
            opened.write(data.data)
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(beside, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(beside)
        raise
    for changed in (folder, os.path.dirname(folder)):
        descriptor = os.open(changed, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def names(folder: str) -> list[str]:
    """The names of the sets in a folder, oldest first."""
    try:
        return sorted(filter(_SET.fullmatch, os.listdir(folder)))
    except FileNotFoundError:
        return []


def remove(folder: str, name: str) -> None:
    """Remove a set from a folder, if it exists."""
    shutil.rmtree(os.path.join(folder, name), ignore_errors=True)


def scan(folder: str, reader: int) -> Iterator[Found]:
    """The files of all sets in a folder; OSError."""
    for name in names(folder):
        entries: list[str] = []
        with suppress(FileNotFoundError, NotADirectoryError):
            entries = sorted(os.listdir(os.path.join(folder, name)))
        for entry in entries:
            matched, path = _FILE.fullmatch(entry), os.path.join(folder, name, entry)
            if matched is None:
                continue
            need = name, int(matched[2])
            try:
                yield Found(*need, path, reader, _checked(file.read_header(path), need))
            except FileNotFoundError:  # removed meanwhile
                pass
            except (OSError, FrameError) as problem:
                yield Found(*need, path, reader, None, f"{path}: {problem}")


def sound(path: str, need: Need) -> np.ndarray | str:
    """The bytes of a file if they are sound and belong to a set and a rank; else the problem."""
    try:
        data = np.fromfile(path, np.uint8)
        _checked(file.verify(data), need)
    except (OSError, FrameError) as problem:
        return f"{path}: {problem}"
    return data


def _checked(header: dict[str, Any], need: Need) -> dict[str, Any]:
    """A header; FrameError if it belongs to another set or rank."""
    if (header["set"], header["rank"]) != need:
        raise FrameError(f"it is the file of rank {header['rank']} of {header['set']}")
    return header


# -- complete sets, and their files from any rank


def headers_of(name: str, files: list[Found]) -> dict[int, dict[str, Any]] | Exception:
    """The headers of all ranks of a set, or an error that names the missing one."""
    own = [one for one in files if one.set == name]
    headers = {one.rank: one.header for one in own if one.header is not None}
    ranks = next(iter(headers.values()))["ranks"] if headers else 1
    for rank in range(ranks):
        if rank not in headers:
            return _lack((name, rank), [one.problem for one in own if one.rank == rank])
    return headers


def job_of(sets: list[Headers], folder: str) -> str:
    """The job of complete sets, newest first; ValueError for two jobs, whose steps cannot be compared."""
    newest = {headers[0]["job"]: headers[0]["set"] for headers in reversed(sets)}
    if len(newest) > 1:
        raise ValueError(
            f"{folder} has checkpoints of {len(newest)} jobs, {' and '.join(newest.values())}: "
            "remove those of all but one"
        )
    return next(iter(newest), "")


def fetch(comm: MPI.Intracomm, needs: list[Need], files: list[Found]) -> dict[Need, np.ndarray] | Exception:
    """Fetch sound bytes of the files that this rank needs; an error on all ranks if one is missing."""
    left: dict[Need, list[Found]] = {need: [] for need in needs}
    problems: dict[Need, list[str]] = {need: [] for need in needs}
    # Each rank first tries files that it can read itself, on its own disk first.
    order = {comm.rank: 0, -1: 1}
    for one in sorted(files, key=lambda one: (order.get(one.reader, 2), one.reader, one.path)):
        need = one.set, one.rank
        if need in left and one.header is not None:
            left[need].append(one)
        elif need in left:
            problems[need].append(one.problem)
    found: dict[Need, np.ndarray] = {}
    while True:
        requests: list[list[tuple[Need, str]]] = [[] for _ in range(comm.size)]
        for need, places in left.items():
            if need not in found and places:
                place = places.pop(0)
                requests[comm.rank if place.reader == -1 else place.reader].append((need, place.path))
        # Messages of pkl5 may have more than 2 GiB.
        answers = pkl5.Intracomm(comm).alltoall(
            [[(need, sound(path, need)) for need, path in wants] for wants in comm.alltoall(requests)]
        )
        for need, data in chain.from_iterable(answers):
            if isinstance(data, str):
                problems[need].append(data)
            else:
                found[need] = data
        missing = [need for need in needs if need not in found]
        lacks = comm.allgather([_lack(need, problems[need]) for need in missing if not left[need]])
        for lack in chain.from_iterable(lacks):
            return lack
        if not comm.allreduce(bool(missing), MPI.LOR):
            return found


def _lack(need: Need, problems: list[str]) -> Exception:
    """A FrameError if a file is damaged, a FileNotFoundError if it is missing."""
    text = f"{need[0]} has no sound file of rank {need[1]}"
    if problems:
        return FrameError(f"{text}: {'; '.join(dict.fromkeys(problems))}")
    return FileNotFoundError(text)


# -- arrays from the parts that several ranks have saved


def boxes(headers: Headers, parts: Mapping[str, Box] | None, rank: int, size: int) -> dict[str, Box]:
    """The box of each array that a rank gets, ValueError if it cannot be had.

    Without ``parts``, each of ``size`` ranks gets an equal part of the first dimension.
    """
    wholes = {one["name"]: one["whole"] for header in headers.values() for one in header["arrays"]}
    result: dict[str, Box] = {}
    for name in wholes if parts is None else parts:
        if name not in wholes:
            raise ValueError(f"there is no array {name!r}; there are {', '.join(sorted(wholes))}")
        whole = wholes[name]
        if whole is None:
            raise ValueError(
                f"{name!r} was saved by {len(headers)} ranks as separate arrays: load it on as many, "
                "or save it as a compcoll.checkpoint.Part"
            )
        if parts is None:
            begin, end = rank * whole[0] // size, (rank + 1) * whole[0] // size
            offset, shape = (begin, *[0] * (len(whole) - 1)), (end - begin, *whole[1:])
        else:
            offset, shape = parts[name]
        if not file.lies_within(offset, shape, whole):
            raise ValueError(f"{shape} at {offset} is not within {name!r} of shape {tuple(whole)}")
        result[name] = offset, shape
    return result


def owners(headers: Headers, wanted: Mapping[str, Box]) -> set[int]:
    """The ranks whose files overlap the requested parts."""
    return {
        rank
        for rank, header in headers.items()
        for one in header["arrays"]
        if one["name"] in wanted and _overlap(wanted[one["name"]], one)
    }


def assemble(
    name: str, box: Box, headers: Headers, values: Mapping[int, Mapping[str, np.ndarray]]
) -> np.ndarray:
    """Assemble a box of an array from the values of its `owners`; ValueError if they lack a part of it."""
    offset, shape = box
    parts = [(r, one) for r, header in headers.items() for one in header["arrays"] if one["name"] == name]
    array, covered = np.empty(shape, file.dtype_of(parts[0][1]["dtype"])), np.zeros(shape, bool)
    for rank, one in parts:
        if overlap := _overlap(box, one):
            into, source = overlap
            array[into], covered[into] = values[rank][name][source], True
    if not covered.all():
        raise ValueError(
            f"{name!r} was not saved whole: {(~covered).sum()} values of {shape} at {offset} are missing"
        )
    return array


def _overlap(box: Box, one: Mapping[str, Any]) -> tuple[tuple[slice, ...], tuple[slice, ...]] | None:
    """The overlap of a box and a part, as slices of each; None if it is empty."""
    offset, shape = box
    begins = np.maximum(offset, one["offset"])
    ends = np.minimum(np.add(offset, shape), np.add(one["offset"], one["shape"]))
    if (begins >= ends).any():
        return None
    into = tuple(map(slice, begins - offset, ends - offset))
    return into, tuple(map(slice, begins - one["offset"], ends - one["offset"]))
