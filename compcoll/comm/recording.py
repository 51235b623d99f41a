"""Start of the recording of a program's calls, and facts of the communicators in its records."""

from __future__ import annotations

from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from compcoll.comm.marked import Marked, class_name
from compcoll.core import environment
from compcoll.engine import _engine
from compcoll.engine.start import job_settings
from compcoll.policy.policy import below_min_nbytes
from compcoll.policy.table import store

if TYPE_CHECKING:
    from compcoll.tracing.records import CommFacts

__all__ = ["record", "start"]


def start(summary: bool = False, trace: str | Path | None = None) -> None:
    """Record the calls of this process; see `compcoll.tracing.recording.start`."""
    from compcoll.tracing import recording  # which most programs do not need

    recording.start(_facts_of, store().measured, summary, trace)


@cache
def record() -> None:
    """Trace a program that makes its communicators itself, if ``COMPCOLL_TRACE`` is set; local.

    Raises
    ------
    OSError
        If the trace cannot be written; ranks agree on that before any continues.
    """
    trace = job_settings().get("trace")
    if trace is not None or environment.trace() is not None:
        start(trace=trace)


@lru_cache(1024)
def _facts_of(number: int, name: str, size: int) -> CommFacts:
    """The facts of a marked communicator with this name; fewer if it was freed."""
    from compcoll.tracing.records import CommFacts

    try:
        marked = Marked.of(number)
        _engine.place_of(number)  # MPI would end all ranks if asked about a freed communicator
        name = name or class_name(marked.comm)
    except ValueError:
        return CommFacts(name or "Comm", size, "the message was small, and the communicator is freed by now")
    return CommFacts(name, marked.size, marked.idle or below_min_nbytes(marked.policy.min_nbytes))
