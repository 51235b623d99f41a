"""COMM_WORLD and COMM_SELF: marking them, or replacing them by a `Comm` in `MPI`."""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

from compcoll.comm.communicator import PREDEFINED, Comm, of_handle
from compcoll.comm.construct import construct
from compcoll.comm.recording import start
from compcoll.core import environment
from compcoll.engine import _engine
from compcoll.policy import Policy, make_policy
from compcoll.tracing.words import plural

__all__ = ["mark_world", "wrap_world"]

# Pickle finds mpi4py's own communicators by these names in a program that has replaced them.
COMM_WORLD, COMM_SELF = MPI.COMM_WORLD, MPI.COMM_SELF


def mark_world(
    *, summary: bool | None = None, trace: str | None = None, ranks: int | None = None, **settings: Any
) -> None:
    """Mark COMM_WORLD and COMM_SELF themselves, so that all calls on them are served; collective.

    Every kind of program starts with this function, because ranks of one job may run different ones: it makes
    all MPI calls that precede the program's.

    Parameters
    ----------
    summary : bool, optional
        True if rank 0 prints a summary of all calls to stderr when the program ends; by default
        ``COMPCOLL_SUMMARY``, else true.
    trace : path, optional
        Folder of the trace; by default ``COMPCOLL_TRACE``.
    ranks : int, optional
        Required number of ranks.
    **settings
        Codec, ``when``, ``min_nbytes`` and policy, as for `compcoll.Comm`.

    Raises
    ------
    OSError, ValueError
        On all ranks, if any cannot start, or if their settings differ.
    """

    def made() -> Policy:
        size = PREDEFINED["COMM_WORLD"].size
        if ranks not in (None, size):
            raise ValueError(f"-n {ranks}, but a launcher has started {plural(size, 'rank')}: leave -n out")
        names = ("codec", "when", "min_nbytes", "policy")
        policy = make_policy(None, *(settings.get(name) for name in names))
        start(environment.summary() if summary is None else summary, trace)
        return policy

    for comm in PREDEFINED.values():
        if not _engine.number_of(comm):
            construct(comm, made, False, False, None, itself=True)


def wrap_world(summary: bool | None = None, **settings: Any) -> None:
    """Mark COMM_WORLD and COMM_SELF, and replace them by a `Comm` in `MPI`; collective over all ranks.

    Later imports find these, and communicators made from them inherit their policy. A second call has no
    effect.

    Parameters
    ----------
    summary, **settings
        See `mark_world`.

    Raises
    ------
    OSError, ValueError
        See `mark_world`.
    """
    if isinstance(MPI.COMM_WORLD, Comm):
        return
    mark_world(summary=summary, **settings)
    for name, comm in PREDEFINED.items():
        setattr(MPI, name, of_handle(comm.handle, None))
