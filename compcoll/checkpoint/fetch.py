"""The files of sets, from whichever rank can read them, and what sets lack."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from mpi4py import MPI

from compcoll.checkpoint import file, folders
from compcoll.core.errors import FrameError

__all__ = ["Files", "complete", "fetch", "job_of", "sound"]

#: Files, each with the rank that can read it, -1 for any.
Files = list[tuple[folders.Found, int]]
#: The set and the rank of a file.
Need = tuple[str, int]


def complete(name: str, everyone: Files) -> dict[int, dict[str, Any]] | Exception:
    """The headers of all ranks of a set, or what it lacks."""
    files = [one for one, _ in everyone if one.set == name]
    headers = {one.rank: one.header for one in files if one.header is not None}
    ranks = next(iter(headers.values()))["ranks"] if headers else 1
    for rank in range(ranks):
        if rank not in headers:
            return _lack((name, rank), [one.problem for one in files if one.rank == rank])
    return headers


def job_of(headers: list[dict[str, Any]], folder: str) -> str:
    """The job of a folder's complete sets; ValueError for two jobs, whose steps cannot be compared."""
    newest = {one["job"]: one["set"] for one in reversed(headers)}
    if len(newest) > 1:
        raise ValueError(
            f"{folder} has checkpoints of {len(newest)} jobs, {' and '.join(newest.values())}: "
            "remove those of all but one"
        )
    return next(iter(newest), "")


def _lack(need: Need, problems: list[str]) -> Exception:
    """A FrameError where a file is damaged, a FileNotFoundError where it is not there."""
    text = f"{need[0]} has no sound file of rank {need[1]}"
    if problems:
        return FrameError(f"{text}: {'; '.join(dict.fromkeys(problems))}")
    return FileNotFoundError(text)


def fetch(comm: MPI.Intracomm, needs: list[Need], everyone: Files) -> dict[Need, np.ndarray] | Exception:
    """Sound bytes of the files that this rank needs; on all ranks an error where one has none; collective."""
    places: dict[Need, set[tuple[int, str]]] = defaultdict(set)
    problems: dict[Need, list[str]] = defaultdict(list)
    for one, reader in everyone:
        if one.header is not None:
            places[one.set, one.rank].add((reader, one.path))
        else:
            problems[one.set, one.rank].append(one.problem)
    # Each rank begins with what it can read by itself.
    left = {
        need: sorted(places[need], key=lambda at: (at[0] not in (comm.rank, -1), at[0] == -1, at))
        for need in needs
    }
    found: dict[Need, np.ndarray] = {}
    while True:
        asked: list[list[tuple[Need, str]]] = [[] for _ in range(comm.size)]
        for need in left:
            if need not in found and left[need]:
                reader, path = left[need].pop(0)
                asked[comm.rank if reader == -1 else reader].append((need, path))
        answers = comm.alltoall(
            [[(need, sound(path, need)) for need, path in wants] for wants in comm.alltoall(asked)]
        )
        for need, data in (one for some in answers for one in some):
            if isinstance(data, str):
                problems[need].append(data)
            else:
                found[need] = data
        missing = [need for need in needs if need not in found]
        lacks = comm.allgather([_lack(need, problems[need]) for need in missing if not left[need]])
        if any(lacks):
            return next(lack for some in lacks for lack in some)
        if not comm.allreduce(bool(missing), MPI.LOR):
            return found


def sound(path: str, need: Need) -> np.ndarray | str:
    """The bytes of a file, if they are those of a set and a rank, and sound; else what is wrong."""
    try:
        data = folders.read(path)
        folders.check_place(file.verify(data), *need)
    except (OSError, FrameError) as problem:
        return f"{path}: {problem}"
    return data
