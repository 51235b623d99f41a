"""The process's engine, started when it is first needed."""

from __future__ import annotations

from mpi4py import MPI

from compcoll.core import environment
from compcoll.engine import _engine

__all__ = ["start_engine"]


def start_engine(workers: int | None = None) -> None:
    """Have an engine; the first caller that names a number of codec threads decides it."""
    _engine.start(MPI.Query_thread() == MPI.THREAD_MULTIPLE, environment.timeout())
    if workers is not None and not _named:
        _named.append(workers)
        _engine.set_workers(workers)


_named: list[int] = []
