"""The recording of this process: its calls are counted, and written to a file if requested.

`compcoll.comm.mark_world` and the first `Comm` of a traced program start it; ``compcoll run`` and
``compcoll.auto`` report to it that the program has failed.
"""

from __future__ import annotations

import platform
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from ctypes import CDLL, byref, c_int
from functools import cache
from pathlib import Path
from threading import Event, RLock, Thread
from typing import Any

import mpi4py
import numpy as np
from mpi4py import MPI
from mpi4py.run import set_abort_status

from compcoll.core import environment
from compcoll.core.version import VERSION
from compcoll.devices.cuda import has_gpu
from compcoll.engine import _engine, hooks
from compcoll.engine.finalize import before_finalize
from compcoll.engine.group import make_private
from compcoll.tracing import exchange
from compcoll.tracing.records import CommFacts, Record, Sites, Tally
from compcoll.tracing.samples import Samples
from compcoll.tracing.words import plural
from compcoll.tracing.writer import Trace

__all__ = ["Recording", "fail", "fail_on_error", "start", "stop"]

#: Seconds after which records are counted and written, even if there are few.
_SECONDS = 1.0
_WORLD = MPI.COMM_WORLD

_recording: Recording | None = None


def start(
    facts_of: Callable[[int, str, int], CommFacts],
    measured: Callable[[], list[dict[str, Any]]],
    summary: bool = False,
    trace: str | Path | None = None,
) -> None:
    """Record the calls of this process, if a trace or a summary needs them; local.

    Parameters
    ----------
    facts_of : callable
        See `Sites`.
    measured : callable
        Returns the times of calls that were measured both ways, which are written at the end of a trace.
    summary : bool
        True if rank 0 prints a summary of all ranks to stderr at the end.
    trace : path, optional
        Folder of the trace; by default ``COMPCOLL_TRACE``.

    Raises
    ------
    OSError
        If the file of this rank cannot be made, or already exists in a folder given by ``trace``.
    """
    global _recording
    if _recording is None:
        file = _make_file(trace)
        if file is None and not summary:
            return
        _recording = Recording(file, facts_of, measured)
    _recording.summary |= summary


@cache
def _make_file(trace: str | Path | None) -> Trace | None:
    """Make the file of this rank; None without a trace, or if the variable names another program's folder.

    All programs of a script or a restarted job share the variable, so this must not be an error.
    """
    folder = environment.trace() if trace is None else Path(trace)
    if folder is None:
        return None
    try:
        return Trace(folder, _WORLD.rank, _WORLD.size, None if _WORLD.rank else _versions())
    except FileExistsError as error:
        if trace is not None:
            raise
        if _WORLD.rank == 0:
            text = f"compcoll: COMPCOLL_TRACE: {error}; this program is not traced"
            print(text, file=sys.stderr, flush=True)
        return None


def _versions() -> dict[str, str]:
    """Versions of this process's libraries, by their names."""
    name, version = MPI.get_vendor()
    library = f"{name} {'.'.join(map(str, version))}"
    found = {"compcoll": VERSION, "MPI": library, "mpi4py": mpi4py.__version__, "numpy": np.__version__}
    return {**found, "Python": platform.python_version(), **_cuda_version()}


def _cuda_version() -> dict[str, str]:
    """The version of CUDA that the driver of this machine's GPUs supports; nothing without a GPU."""
    number = c_int()
    with suppress(AttributeError, OSError):
        if has_gpu() and not CDLL("libcuda.so.1").cuDriverGetVersion(byref(number)):
            return {"CUDA": f"{number.value // 1000}.{number.value % 1000 // 10}"}
    return {}


def fail(problem: BaseException) -> None:
    """End the trace of a program that ends by an exception, and let MPI end all ranks after Python.

    An exit with status 0 is no failure.
    """
    if isinstance(problem, SystemExit) and problem.code in (None, 0):
        return
    set_abort_status(problem if isinstance(problem, (SystemExit, KeyboardInterrupt)) else 1)
    stop()


def stop() -> None:
    """End the recording of a program that fails, or does not start; local."""
    if _recording is not None:
        _recording.finish(failed=True)


def fail_on_error() -> None:
    """Call `fail` for each uncaught exception, except in an interactive session."""
    say = sys.excepthook

    def hook(kind, problem, traceback) -> None:
        say(kind, problem, traceback)
        if not _is_dialogue():
            fail(problem)

    sys.excepthook = hook


def _is_dialogue() -> bool:
    """True in an interactive session, where an exception ends only a line."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)


class Recording:
    """Counts the calls of this process, and writes them down.

    Parameters
    ----------
    trace : Trace or None
    facts_of, measured : callable
        See `start`.

    Attributes
    ----------
    summary : bool
        True if rank 0 prints a summary of all ranks to stderr at the end.
    """

    def __init__(
        self,
        trace: Trace | None,
        facts_of: Callable[[int, str, int], CommFacts],
        measured: Callable[[], list[dict[str, Any]]],
    ):
        self.summary = False
        self._trace, self._tally, self._sites = trace, Tally(), Sites(facts_of)
        self._measured = measured
        self._samples = Samples()
        self._comm: MPI.Intracomm | None = None
        self._run, self._compares_clocks, self._done = "", False, False
        self._lock, self._stop = RLock(), Event()
        hooks.objects.append(self._add_objects)
        hooks.meets.append(self._meet)
        hooks.watched = 1 if trace is None else 2
        if trace is not None:
            hooks.samples.append(self._samples.add)
        self.begin()
        if trace is not None:
            with suppress(RuntimeError):  # else records are written when there are many, and last
                Thread(target=self._flush_now_and_then, daemon=True).start()
        before_finalize(self.finish)

    def begin(self) -> None:
        """Make this the only recording that the layer records for."""
        _engine.record_calls(self.flush, None if self._trace is None else self._sites.number)

    def flush(self) -> None:
        """Count and write the layer's records; at the end also those of open requests."""
        with self._lock:
            records = [Record._make(call) for call in _engine.take_records(open=self._stop.is_set())]
            if self._done:
                return
            pairs = [(record, self._sites.of(record)) for record in records]
            for pair in pairs:
                self._tally.add(*pair)
            if self._trace is not None and pairs:
                self._trace.add(pairs)
            if self._trace is not None:
                self._trace.add_lists(samples=self._samples.take())

    def finish(self, failed: bool = False) -> None:
        """End the recording once; if the program has failed, without the other ranks."""
        if self._done:
            return
        failed |= hasattr(sys, "last_value") and not _is_dialogue()
        self._stop.set()
        self.flush()
        self._done = True
        _engine.end_records()
        if self._comm is not None and not failed:
            self._exchange(self._comm)
        if self._trace is not None:
            self._trace.add_lists(rows=self._measured())
            self._trace.close(failed)

    def _add_objects(self, saved_nbytes: int) -> None:
        with self._lock:
            self._tally.add_objects(saved_nbytes)

    def _flush_now_and_then(self) -> None:
        while not self._stop.wait(_SECONDS):
            self.flush()

    def _meet(self, marked: Any, level: int) -> None:
        """Compare clocks when a communicator of all ranks is marked and all ranks record; collective."""
        if self._comm is not None or marked.size != _WORLD.size:
            return
        with _engine.plain_calls():
            self._comm, self._compares_clocks = make_private(_WORLD), level == 2
            self._run = self._comm.bcast(f"{time.time_ns():x}")
            if self._trace is not None and self._compares_clocks:
                job = {} if _WORLD.rank else _job(marked)
                self._trace.add_clock(self._run, exchange.compare_all(self._comm), job)

    def _exchange(self, comm: MPI.Intracomm) -> None:
        """Sum up the calls of all ranks, and compare clocks again."""
        total, ranks, reading = exchange.gather(comm, self._tally.values, self._compares_clocks)
        if reading is not None and self._trace is not None:
            self._trace.add_clock(self._run, reading, {})
        if self.summary and comm.rank == 0:
            text = _summary(total, ranks, comm.size, self._tally.reasons)
            print(text, file=sys.stderr, flush=True)


def _job(marked: Any) -> dict[str, Any]:
    """Facts of a communicator of all ranks: nodes, the link's bytes a second, and the cores of a rank."""
    byte, facts = marked.measured.byte if marked.measured else 0.0, marked.facts
    cores = facts.workers + 1.0 if facts.sharing <= 1 else 1 / facts.sharing
    return {"nodes": facts.nodes or (0,) * marked.size, "link": 1 / byte if byte else 0.0, "cores": cores}


def _summary(total: np.ndarray, ranks: int, size: int, reasons: Counter[str]) -> str:
    """Summary of the program for its user.

    Parameters
    ----------
    total : array of float64
        The sums of `Tally.values` over ``ranks`` of ``size`` ranks.
    reasons : Counter
        Rank 0's bytes in calls of plain MPI, by reason.
    """
    calls, accelerated, nbytes, wire, seconds, unchanged = total.tolist()
    ratio = nbytes / wire if wire else 1.0
    whom = plural(size, "rank")
    if ranks != size:
        whom = f"{ranks} of {whom}, the others have not ended yet"
    text = (
        f"compcoll: {plural(calls, 'call')}, {accelerated:.0f} accelerated, {nbytes:.0f} -> {wire:.0f} bytes "
        f"({ratio:.2f}x), {seconds:.3f} s in calls; sums over {whom}"
    )
    if unchanged > nbytes / 2 and size > 1:
        reason = max(reasons, key=reasons.__getitem__, default="the reasons are those of other ranks")
        what = (
            "none of these bytes accelerated"
            if unchanged == nbytes
            else f"{unchanged / nbytes:.0%} of these bytes went uncompressed, most of them for this reason"
        )
        text += f"\ncompcoll: {what}: {reason}; --trace DIR shows all reasons"
    return text
