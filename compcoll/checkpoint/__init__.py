"""Checkpoints: arrays encoded once, written beside the rank, copied to a partner, flushed to a shared folder.

file.py          the bytes of one rank's file
sets.py          sets of such files: writing, finding, fetching from any rank, assembling arrays
checkpointer.py  collective saving and loading
reports.py       results of saving and loading
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from mpi4py import MPI

from compcoll.checkpoint.checkpointer import Checkpointer
from compcoll.checkpoint.file import Part
from compcoll.checkpoint.reports import Checkpoint, SaveReport
from compcoll.checkpoint.sets import Box

__all__ = ["Checkpoint", "Checkpointer", "Part", "SaveReport", "load", "save", "wait"]

_checkpointers: dict[str, Checkpointer] = {}


def save(
    path: str | os.PathLike,
    arrays: Mapping[str, Any],
    step: int,
    *,
    comm: MPI.Intracomm | None = None,
    **options: Any,
) -> SaveReport:
    """Save arrays of all ranks; collective.

    Parameters
    ----------
    path : path
        The shared folder. The first call for a folder makes its `Checkpointer`, which later calls use.
    arrays : mapping of str to numpy.ndarray or Part
        This rank's arrays. A `Part` of an array that is distributed over all ranks can be loaded by any
        number of ranks.
    step : int
    comm : MPI.Intracomm, optional
        COMM_WORLD otherwise.
    **options
        Options of `Checkpointer`, in the first call for a folder.

    Returns
    -------
    SaveReport
    """
    key = os.path.abspath(path)
    if key not in _checkpointers:
        _checkpointers[key] = Checkpointer(path, comm, **options)
    elif options:
        raise ValueError(f"{', '.join(options)} can only be given in the first save to {key}")
    return _checkpointers[key].save(arrays, step)


def load(
    path: str | os.PathLike,
    parts: Mapping[str, Box] | None = None,
    *,
    comm: MPI.Intracomm | None = None,
    local: str | os.PathLike | None = None,
) -> Checkpoint:
    """Load the newest complete set; collective.

    Parameters
    ----------
    path : path
        The shared folder.
    parts : mapping of str to (offset, shape), optional
        The parts of arrays that this rank loads; see `Checkpointer.load`, also for errors.
    comm, local : optional
        Options of `Checkpointer`, for a folder that this process has not saved to.

    Returns
    -------
    Checkpoint
    """
    known = _checkpointers.get(os.path.abspath(path))
    if known is not None:
        return known.load(parts)
    reader = Checkpointer(path, comm, local=local)
    try:
        return reader.load(parts)
    finally:
        reader.close()


def wait(path: str | os.PathLike) -> None:
    """Wait until all that this rank has saved is in the shared folder; raise the flush's OSError, if any."""
    known = _checkpointers.get(os.path.abspath(path))
    if known is not None:
        known.wait()
