"""The recording of this process: its tally, and the trace that is written where one is asked for."""

from __future__ import annotations

import sys
import time
from functools import lru_cache
from threading import Event, RLock, Thread
from types import CodeType
from typing import Any

from mpi4py import MPI

from compcoll.core import environment
from compcoll.engine import _engine, hooks
from compcoll.engine.finalize import before_finalize
from compcoll.tracing import finalize, hints
from compcoll.tracing.names import facts_of
from compcoll.tracing.records import Record, find_site
from compcoll.tracing.tally import Tally
from compcoll.tracing.trace import Trace

__all__ = ["Recording", "fail", "fail_on_error", "start"]

#: Seconds after which records are counted and written, however few they are.
_SECONDS = 1.0
_WORLD = MPI.COMM_WORLD

_recording: Recording | None = None


def start(summary: bool = False) -> None:
    """Record the calls of this process, where ``COMPCOLL_TRACE`` or a summary demand that; local.

    Parameters
    ----------
    summary : bool
        Whether rank 0 says at the end what all ranks did.
    """
    global _recording
    if _recording is None:
        folder = environment.trace()
        if folder is None and not summary:
            return
        trace = Trace(folder, _WORLD.rank, _WORLD.size) if folder is not None else None
        _recording = Recording(trace)
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

    def __init__(self, trace: Trace | None):
        self.tally, self.trace, self.summary = Tally(), trace, False
        self._comm: MPI.Intracomm | None = None
        self._marked: Any = None
        self._run, self._level, self._done, self._ends = "", 0, False, False
        self._lock, self._stop = RLock(), Event()
        # Where the program called on which communicator, by the numbers that the layer has of it.
        self._sites: dict[tuple[Any, int, int, str], int] = {}
        self._of_site: list[tuple[Any, int, Any]] = []
        hooks.objects.append(self._add_objects)
        hooks.meets.append(self._meet)
        hooks.watched = 1 if trace is None else 2
        _engine.record_calls(self._take_all, None if trace is None else self._site)
        if trace is not None:
            Thread(target=self._flush_now_and_then, daemon=True).start()
        before_finalize(self.finish)

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
        """Count and write what the layer has recorded."""
        with self._lock:
            records = [self._record_of(*call) for call in _engine.take_records(open=self._ends)]
            if self._done:
                return
            self.tally.add(records)
            if self.trace is not None and records:
                self.trace.add(records)

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
        code, instruction, facts = self._of_site[site - 1] if site else (None, 0, facts_of(comm, "", size))
        problem = "unfinished" if is_open else "Exception" if failed else None
        return Record(
            name,
            facts,
            nbytes,
            sends,
            start,
            returned,
            end,
            last,
            accelerated,
            code,
            instruction,
            problem,
            calls,
        )

    def _add_objects(self, saved_nbytes: int) -> None:
        with self._lock:
            self.tally.add_objects(saved_nbytes)

    def _flush_now_and_then(self) -> None:
        while not self._stop.wait(_SECONDS):
            self._take_all()

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
        self._ends = True
        self._take_all()
        self._done = True
        _engine.end_records()
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
