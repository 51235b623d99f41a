"""Files that are there whole or not at all.

``SET/rank-R.cck`` is a rank's own, ``copy-R.cck`` its partner's copy. A set's name has its step and the time,
so files of two attempts at a step are never mixed. It is complete where a sound file of each rank is found
anywhere; nothing else says so, and so nothing else can be wrong about it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from compcoll.checkpoint.file import read_header
from compcoll.core.errors import FrameError

__all__ = ["Found", "check_place", "read", "remove_set", "scan", "set_name", "sets", "step_of", "write"]

_SET = re.compile(r"step-(\d+)-([0-9a-f]{16})")
_FILE = re.compile(r"(rank|copy)-(\d+)\.cck")


@dataclass(frozen=True)
class Found:
    """A file.

    Attributes
    ----------
    set : str
        The name of its set.
    rank : int
        Whose values it has.
    path : str
    header : dict or None
    problem : str
        Why there is no header.
    """

    set: str
    rank: int
    path: str
    header: dict[str, Any] | None
    problem: str = ""


def set_name(step: int, word: int) -> str:
    """The name of a set, by which sets are ordered."""
    return f"step-{step:012d}-{word:016x}"


def step_of(name: str) -> int:
    """The step in a set's name."""
    return int(name.split("-")[1])


def write(folder: str, name: str, data: np.ndarray) -> None:
    """Write a file beside its place, have it on the disk, and rename it; OSError."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, name)
    beside = f"{path}.{os.getpid()}.tmp"
    try:
        with open(beside, "wb") as file:
            file.write(data.data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(beside)
        raise
    _sync(folder)
    _sync(os.path.dirname(folder))


def _sync(folder: str) -> None:
    """Have a folder's entries on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(path: str) -> np.ndarray:
    """All bytes of a file; OSError."""
    return np.fromfile(path, np.uint8)


def sets(folder: str) -> list[str]:
    """The names of the sets in a folder, oldest first."""
    try:
        return sorted(filter(_SET.fullmatch, os.listdir(folder)))
    except FileNotFoundError:
        return []


def scan(folder: str) -> Iterator[Found]:
    """The files of all sets in a folder."""
    for entry in sets(folder):
        with suppress(FileNotFoundError, NotADirectoryError):
            for name in sorted(os.listdir(os.path.join(folder, entry))):
                path = os.path.join(folder, entry, name)
                matched = _FILE.fullmatch(name)
                with suppress(FileNotFoundError):  # removed meanwhile
                    if matched:
                        yield _found(entry, int(matched[2]), path)


def _found(entry: str, rank: int, path: str) -> Found:
    try:
        header = read_header(path)
        check_place(header, entry, rank)
    except (OSError, FrameError) as problem:
        if isinstance(problem, FileNotFoundError):
            raise
        return Found(entry, rank, path, None, f"{path}: {problem}")
    return Found(entry, rank, path, header)


def check_place(header: Mapping[str, Any], entry: str, rank: int) -> None:
    """FrameError where a header is not that of a set and a rank."""
    if (header["set"], header["rank"]) != (entry, rank):
        raise FrameError(f"it is the file of rank {header['rank']} of {header['set']}")


def remove_set(folder: str, name: str) -> None:
    """Remove a set from a folder, as far as it is there."""
    shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
