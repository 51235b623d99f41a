"""Ranks that no mpiexec started.

pmi.py         the server of PMI-1, a program of its own
bootstrap.py   a process becomes a rank: joins the others, gives MPICH its connection, initialises MPI
"""

from __future__ import annotations

import os

__all__ = ["is_launched"]

#: Environment variables that process managers set: Hydra, PMIx, Open MPI, Intel MPI, PALS.
_MARKS = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID", "PALS_RANKID")


def is_launched() -> bool:
    """Whether a process manager such as mpiexec started this process; does not initialise MPI."""
    return any(mark in os.environ for mark in _MARKS)
