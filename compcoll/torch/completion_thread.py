"""A thread that completes operations for which no Python thread waits, and enforces their time-outs."""

from __future__ import annotations

import time
from contextlib import suppress
from threading import Lock, Thread
from typing import Any

from compcoll.engine import _engine
from compcoll.engine.finalize import before_finalize

__all__ = ["SLICE", "completion_thread", "wait_for_callbacks"]

#: Seconds between two checks of time-outs.
SLICE = 0.2


class _CompletionThread:
    """The thread, and the operations whose time it watches."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._timed: list[Any] = []
        self._idle: list[Any] = []
        self._stopped = self._hurries = False
        self._thread = Thread(target=self._loop, name="compcoll-completion", daemon=True)
        self._thread.start()
        before_finalize(self.stop)

    def enforce_timeout(self, work: Any) -> None:
        """End an operation with an error after its time-out, though no Python thread waits for it."""
        self._add(self._timed, work)

    def submit_if_slow(self, work: Any) -> None:
        """Submit an operation that does not end before the next check of time-outs."""
        self._add(self._idle, work)

    def _add(self, to: list[Any], work: Any) -> None:
        with self._lock:
            to.append(work)
        if not self._hurries:
            _engine.wake_client()

    def _loop(self) -> None:
        checked = time.monotonic()
        while not self._stopped:
            self._hurries = bool(self._timed or self._idle)
            for work in _engine.take_ended(SLICE if self._hurries else 1e6):
                work.finish()  # which raises nothing
            if time.monotonic() - checked < SLICE:
                continue
            checked = time.monotonic()
            with self._lock:
                idle, timed = self._idle[:], self._timed[:]
                self._idle.clear()
            for work in idle:
                work.submit()
            ended = [work for work in timed if not work.check_timeout()]
            with self._lock:
                self._timed[:] = [work for work in self._timed if work not in ended]

    def wait_for_callbacks(self) -> None:
        """Wait for the operations whose futures have callbacks in Python, unless they fail."""
        with self._lock:
            timed = self._timed[:]
        for work in timed:
            if work.has_callbacks:
                with suppress(Exception):
                    work.wait()

    def stop(self) -> None:
        self._stopped = True
        _engine.wake_client()
        self._thread.join()


_threads: list[_CompletionThread] = []
_one = Lock()


def wait_for_callbacks() -> None:
    """Wait for the operations of this process whose futures have callbacks in Python."""
    for one in _threads:
        one.wait_for_callbacks()


def completion_thread() -> _CompletionThread:
    """The process's completion thread, started by the first call."""
    with _one:
        if not _threads:
            _threads.append(_CompletionThread())
        return _threads[0]
