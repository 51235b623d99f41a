"""Ways of random programs to complete requests: each yields pairs of an entry and its status."""

from __future__ import annotations

from collections.abc import Callable
from os import sched_yield
from typing import Any

from mpi4py import MPI

__all__ = ["WAYS"]


def _wait(run: Any, entries: list):
    for entry in entries:
        status = MPI.Status()
        run.call(entry.request.Wait, status)
        yield entry, status


def _test(run: Any, entries: list):
    while entries:
        for entry in list(entries):
            status = MPI.Status()
            if entry.request.Test(status):
                entries.remove(entry)
                yield entry, status
        sched_yield()


def _waitall(run: Any, entries: list):
    statuses = [MPI.Status() for _ in entries]
    run.call(MPI.Request.Waitall, [entry.request for entry in entries], statuses)
    yield from zip(entries, statuses, strict=True)


def _testall(run: Any, entries: list):
    if any(isinstance(entry.request, MPI.Prequest) for entry in entries):
        # MPICH 5.0's Testall takes a persistent collective for one that failed.
        yield from _test(run, entries)
        return
    statuses = [MPI.Status() for _ in entries]
    while not MPI.Request.Testall([entry.request for entry in entries], statuses):
        sched_yield()
    yield from zip(entries, statuses, strict=True)


def _one_by_one(method: Callable):
    def way(run: Any, entries: list):
        yield from _null(entries)
        while entries:
            status = MPI.Status()
            found = method([entry.request for entry in entries], status)
            index = found if isinstance(found, int) else found[0] if found[1] else MPI.UNDEFINED
            if index != MPI.UNDEFINED:
                yield entries.pop(index), status
            else:
                sched_yield()

    return way


def _several(method: Callable):
    def way(run: Any, entries: list):
        yield from _null(entries)
        while entries:
            statuses = [MPI.Status() for _ in entries]
            found = method([entry.request for entry in entries], statuses) or []
            done = [(entries[index], status) for index, status in zip(found, statuses, strict=False)]
            entries = [entry for entry in entries if all(entry is not one for one, _ in done)]
            yield from done
            sched_yield()

    return way


def _null(entries: list):
    """Remove and yield the null requests that an interrupt has left."""
    for entry in list(entries):
        if not entry.request:
            entries.remove(entry)
            yield entry, MPI.Status()


WAYS = (
    _wait,
    _test,
    _waitall,
    _testall,
    _one_by_one(MPI.Request.Waitany),
    _one_by_one(MPI.Request.Testany),
    _several(MPI.Request.Waitsome),
    _several(MPI.Request.Testsome),
)
