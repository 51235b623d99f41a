"""Ranks that no mpiexec started.

pmi.py         the server of PMI-1, a program of its own
bootstrap.py   a process becomes a rank: joins the others, gives MPICH its connection, initialises MPI
"""

from __future__ import annotations

import multiprocessing
import os
from contextlib import suppress
from pathlib import Path

__all__ = ["forget_launcher", "is_child", "is_launched"]

#: Environment variables that process managers set: Hydra, PMIx, Open MPI, Intel MPI, PALS.
_MARKS = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID", "PALS_RANKID")


def is_launched() -> bool:
    """Whether a process manager such as mpiexec started this process; does not initialise MPI."""
    return any(mark in os.environ for mark in _MARKS) and not is_child()


def forget_launcher() -> None:
    """Have a child of a rank not take itself for that rank."""
    for name in (*_MARKS, "PMI_FD", "PMI_SIZE", "PMI_PORT", "PMI_ID"):
        os.environ.pop(name, None)


def is_child() -> bool:
    """Whether another Python has spawned this one, which has the environment of a rank then, but is none."""
    if multiprocessing.parent_process() is not None:
        return True
    # While its main module is imported that is not known yet.
    with suppress(OSError):
        words = Path("/proc/self/cmdline").read_bytes()
        return any(mark in words for mark in (b"multiprocessing.spawn", b"multiprocessing.forkserver"))
    return False
