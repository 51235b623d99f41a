"""The recording of this process: its tally, and the trace that is written where one is asked for."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from functools import lru_cache
from threading import Event, RLock, Thread
from time import perf_counter
from types import CodeType
from typing import Any

from mpi4py import MPI

from compcoll.core import environment
from compcoll.engine import _engine, hooks
from compcoll.engine.finalize import before_finalize
from compcoll.tracing import finalize, hints
from compcoll.tracing._watch import Record, Recorder, find_site, record_with
from compcoll.tracing.names import facts_of
from compcoll.tracing.requests import watch_requests
from compcoll.tracing.tally import Tally
from compcoll.tracing.trace import Trace
from compcoll.tracing.watch import watch

__all__ = ["Recording", "fail", "fail_on_error", "start"]

#: Records that are kept before they are counted and written, and the seconds after which they are anyway.
_MOST, _SECONDS = 256, 1.0
_WORLD = MPI.COMM_WORLD

_recording: Recording | None = None


def start(classes: Iterable[type], summary: bool = False) -> None:
    """Record the calls of this process, where ``COMPCOLL_TRACE`` or a summary demand that; local.

    Parameters
    ----------
    classes : iterable of type
        Those of compcoll's communicators.
    summary : bool
        Whether rank 0 says at the end what all ranks did.
    """
    global _recording
    if _recording is None:
        folder = environment.trace()
        if folder is None and not summary:
            return
        trace = Trace(folder, _WORLD.rank, _WORLD.size) if folder is not None else None
        _recording = Recording(tuple(classes), trace)
    _recording.summary |= summary


def fail(problem: BaseException) -> None:
    """The program ends on this rank by an exception, and MPI is to end all of them; an exit of 0 is none."""
    if isinstance(problem, SystemExit) and problem.code in (None, 0):
        return
    finalize.end_all(problem)
    if _recording is not None:
        _recording.finish(failed=True)


def fail_on_error() -> None:
    """`fail` for each uncaught exception, but in a dialogue."""
    say = sys.excepthook

    def hook(kind, problem, traceback) -> None:
        say(kind, problem, traceback)
        if not (hasattr(sys, "ps1") or sys.flags.interactive):
            fail(problem)

    sys.excepthook = hook


class Recording:
    """Counts calls, and writes them down.

    Attributes
    ----------
    tally : Tally
    trace : Trace or None
    summary : bool
        Whether rank 0 says at the end what all ranks did.
    """

    def __init__(self, classes: tuple[Any, ...], trace: Trace | None):
        self.tally, self.trace, self.summary = Tally(), trace, False
        self._comm: MPI.Intracomm | None = None
        self._marked: Any = None
        self._run, self._level, self._done, self._ends = "", 0, False, False
        # Calls whose requests are not complete, by the identities of these.
        self._open: dict[int, tuple[Any, MPI.Request]] = {}
        self._lock, self._stop = RLock(), Event()
        self.recorder = Recorder(self._take, None if trace is None else self._began, _MOST)
        # Where the program called on which communicator, by the numbers that the layer has of it.
        self._sites: dict[tuple[Any, int, int, str], int] = {}
        self._of_site: list[tuple[Any, int, Any]] = []
        watch(classes, self._completed)
        hooks.meets.append(self._meet)
        hooks.watched = 1 if trace is None else 2
        self.resume()
        if trace is not None:
            watch_requests(self._seen)
            Thread(target=self._flush_now_and_then, daemon=True).start()
        before_finalize(self.finish)

    def resume(self) -> None:
        """Record from now on."""
        record_with(self.recorder)
        _engine.record_calls(self._take_all, None if self.trace is None else self._site)

    @staticmethod
    def pause() -> None:
        """Record nothing any more."""
        record_with(None)
        _engine.end_records()

    # -- calls

    def _site(self, path: str | None, symbol: str, comm: int, name: str) -> int:
        """The number of a place that has called: see `compcoll.engine._engine.record_calls`."""
        code, instruction = find_site() if path is None else (_code_of(path, symbol), 0)
        key = code, instruction, comm, name
        number = self._sites.get(key)
        if number is None:
            self._of_site.append((code, instruction, facts_of(comm, name)))
            number = self._sites[key] = len(self._of_site)
        return number

    def _take_all(self) -> None:
        """Take what the layer has recorded as well."""
        for call in _engine.take_records(open=self._ends):
            self.recorder.add(self._record_of(*call))
        self.recorder.flush()

    def _record_of(
        self,
        name: str,
        comm: int,
        size: int,
        nbytes: int,
        sends: bool,
        start: float,
        returned: float,
        end: float,
        last: Any,
        accelerated: bool,
        failed: bool,
        site: int,
        is_open: bool,
        calls: int,
    ) -> Record:
        record = Record()
        where = self._of_site[site - 1] if site else (None, 0, facts_of(comm, "", size))
        record.code, record.instruction, record.comm = where
        record.name, record.nbytes, record.sends, record.calls = name, nbytes, sends, calls
        record.start, record.returned, record.end = start, returned, end
        record.last, record.accelerated = last, accelerated
        record.problem = "unfinished" if is_open else "Exception" if failed else None
        return record

    def _take(self, records: list) -> None:
        with self._lock:
            if not self._done:
                self.tally.add(records)
                if self.trace is not None:
                    self.trace.add(records)

    def _began(self, record: Any, request: MPI.Request) -> MPI.Request:
        if request:
            self._open[id(request)] = record, request
        else:
            self.recorder.add(record)
        return request

    def _completed(self, request: MPI.Request, last: tuple) -> None:
        record, _ = self._open.get(id(request), (None, None))
        if record is None:
            if len(last) == 3:
                with self._lock:
                    self.tally.add_outcome(last[2])
            return
        record.last, record.accelerated = last, len(last) == 3
        self._close(request)

    def _seen(self, requests: Iterable[MPI.Request]) -> None:
        """Close the records of those requests that are complete."""
        for request in requests:
            if id(request) in self._open and not request:
                self._close(request)

    def _close(self, request: MPI.Request, late: bool = False) -> None:
        """Close the record of a request that is complete."""
        record, _ = self._open.pop(id(request), (None, None))
        if record is not None:
            record.end, record.late = perf_counter(), late
            self.recorder.add(record)

    def _flush_now_and_then(self) -> None:
        while not self._stop.wait(_SECONDS):
            self._sweep()
            self._take_all()

    def _sweep(self) -> None:
        """Close what was completed in another way than by methods of requests."""
        for _, request in list(self._open.values()):
            if not request:
                self._close(request, late=True)

    # -- the beginning and the end

    def _meet(self, marked: Any, level: int) -> None:
        """All ranks of a communicator record: where these are all there are, they compare clocks."""
        if self._comm is not None or marked.size != _WORLD.size:
            return
        with _engine.plain_calls():
            self._comm, self._level, self._marked = MPI.Intracomm(_WORLD).Dup(), level, marked
            self._run = self._comm.bcast(f"{time.time_ns():x}")
            if self.trace is not None and level == 2:
                self.trace.note_clock(self._run, finalize.compare_all(self._comm))

    def finish(self, failed: bool = False) -> None:
        """The program ends: once, and without others where it has failed."""
        if self._done:
            return
        failed |= finalize.has_failed()
        self._stop.set()
        self._sweep()
        for record, request in list(self._open.values()):
            record.problem = "unfinished"
            self._close(request)
        self._ends = True
        self._take_all()
        self._done = True
        self.pause()
        if self._comm is not None and not failed:
            self._part(self._comm)
        if self.trace is not None:
            self.trace.close(failed)

    def _part(self, comm: MPI.Intracomm) -> None:
        """Say what all ranks did, and compare clocks again."""
        total, ranks, reading = finalize.gather(comm, self.tally.values, self._level == 2)
        if reading is not None and self.trace is not None:
            self.trace.note_clock(self._run, reading)
        if self.summary and comm.rank == 0:
            lines = [finalize.line(total, ranks, comm.size), *hints.of(self.tally, total, self._marked)]
            print("\n".join(lines), file=sys.stderr, flush=True)


def _call() -> None:
    """What has the place of a program's function."""


@lru_cache(1024)
def _code_of(path: str, symbol: str) -> CodeType:
    """A code object that stands for a function of C."""
    return _call.__code__.replace(co_filename=path, co_name=symbol, co_qualname=symbol)
