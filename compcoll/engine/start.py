"""The process's engine, started when it is first needed."""

from __future__ import annotations

from mpi4py import MPI

from compcoll.core import environment
from compcoll.engine import _engine

__all__ = ["start_engine", "start_threads"]


def start_engine(workers: int | None = None, sharing: float = 1.0) -> None:
    """Have an engine; the first caller that names a number of worker threads decides it.

    ``sharing``: ranks of a node for each of its cores.
    """
    _engine.hook()  # which had to wait where compcoll was imported before MPI began
    _engine.start(MPI.Query_thread() == MPI.THREAD_MULTIPLE, environment.timeout())
    if workers is not None and not _named:
        _named.append(workers)
        wanted = environment.threads() is not None
        _engine.set_workers(workers, _engine.NAMED if wanted else _engine.FREE)
    if sharing > 1:
        _engine.set_oversubscribed()


def start_threads() -> bool:
    """Start the threads of nonblocking calls, where there are none yet.

    Returns
    -------
    bool
        Whether this rank may call MPI from several threads, and has them: the system may be out of threads.
    """
    with _engine.plain_calls():  # a program may have asked for less than there is
        if MPI.Query_thread() != MPI.THREAD_MULTIPLE:
            return False
    return bool(_engine.start_threads())


_named: list[int] = []
