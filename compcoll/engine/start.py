"""The process's engine, started when it is first needed, and the settings of its job."""

from __future__ import annotations

import json
from typing import Any

from mpi4py import MPI

from compcoll.core import environment
from compcoll.engine import _engine

__all__ = ["job_settings", "start_engine", "start_threads"]


def job_settings() -> dict[str, Any]:
    """Settings of the ``compcoll run`` of whose job this process is a rank, by the names of its options.

    Empty where it is of none, as a program is that a rank has started.
    """
    settings: dict[str, Any] = json.loads(_engine.job_settings() or "{}")
    return settings


def start_engine(workers: int | None = None, sharing: float = 1.0) -> None:
    """Start the engine if necessary; the first caller that gives a number of worker threads sets it.

    ``sharing``: ranks of the node per core.
    """
    _engine.hook()  # not possible before MPI is initialised
    several = MPI.Query_thread() == MPI.THREAD_MULTIPLE
    _engine.start(several, environment.timeout(), environment.notice())
    if workers is not None and not _named:
        _named.append(workers)
        wanted = environment.threads() is not None
        _engine.set_workers(workers, _engine.NAMED if wanted else _engine.FREE)
    if sharing > 1:
        _engine.set_oversubscribed()


def start_threads() -> bool:
    """Start the threads of nonblocking calls, if they are not running.

    Returns
    -------
    bool
        True if this rank may call MPI from several threads, and has them: the system may be out of threads.
    """
    with _engine.plain_calls():  # a program may have asked for less than there is
        if MPI.Query_thread() != MPI.THREAD_MULTIPLE:
            return False
    return bool(_engine.start_threads())


_named: list[int] = []
