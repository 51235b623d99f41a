"""Ranks without mpiexec: one PMI-1 server for the job, and its clients.

pmi.py         the server, a separate program, which rank 0 starts bootstrap.py   its client: joins the other
ranks, gives MPICH the connection, initialises MPI torchrun.py    under torch's launchers: when MPI is
initialised, and how ranks find the server by torch's store
"""

from __future__ import annotations

import os
import sys
from multiprocessing import parent_process

__all__ = ["forget_launcher", "is_child", "is_launched"]

#: Environment variables that process managers set: Hydra, PMIx, Open MPI, Intel MPI, PALS.
_MARKS = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID", "PALS_RANKID")
#: Words in the command line of a process that multiprocessing started.
_STARTERS = ("multiprocessing.spawn", "multiprocessing.forkserver")


def is_launched() -> bool:
    """True if a process manager such as mpiexec started this process; does not initialise MPI."""
    return any(mark in os.environ for mark in _MARKS) and not is_child()


def forget_launcher() -> None:
    """Remove a rank's variables from the environment of its child, which would act as that rank."""
    for name in (*_MARKS, "PMI_FD", "PMI_SIZE", "PMI_PORT", "PMI_ID"):
        os.environ.pop(name, None)


def is_child() -> bool:
    """True if multiprocessing started this process, which may have a rank's environment without being one."""
    # While its main module is imported, a spawned process does not know its parent yet.
    return parent_process() is not None or any(word in " ".join(sys.orig_argv) for word in _STARTERS)
