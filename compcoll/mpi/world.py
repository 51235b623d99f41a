"""Wrapped communicators in the places of those that MPI has from the beginning."""

from __future__ import annotations

import os
from typing import Any

from mpi4py import MPI

from compcoll.core import environment
from compcoll.mpi.comm import CLASSES, PREDEFINED, Comm
from compcoll.mpi.core import describe
from compcoll.tracing import recording

__all__ = ["wrap_world"]

# By these names pickle finds mpi4py's own in a program that has others in their places.
COMM_WORLD, COMM_SELF = MPI.COMM_WORLD, MPI.COMM_SELF

#: Variables of the environment that say how calls are compressed.
_POLICY = ("COMPCOLL_CODEC", "COMPCOLL_CONFIG")


def wrap_world(summary: bool | None = None, **settings: Any) -> None:
    """Put a `Comm` into the places of `MPI.COMM_WORLD` and `MPI.COMM_SELF`; collective over all ranks.

    Whoever imports them afterwards has them, and whatever is made of them has their policy. Where that has
    been done before, nothing happens.

    Parameters
    ----------
    summary : bool, optional
        Whether rank 0 writes a line about all calls to the standard error output when the program ends; by
        default what ``COMPCOLL_SUMMARY`` says, else yes.
    **settings
        As for `compcoll.Comm`. Where neither these nor the environment say which codec, it is ``"auto"``: a
        program that was not written for compression is to gain by it or to stay as it is.
    """
    if isinstance(MPI.COMM_WORLD, Comm):
        return
    if not {"codec", "when", "policy"} & settings.keys() and not any(map(os.environ.get, _POLICY)):
        settings["codec"] = "auto"
    recording.start(CLASSES, describe, environment.summary() if summary is None else summary)
    for name, comm in PREDEFINED.items():
        setattr(MPI, name, Comm(comm, **settings))
