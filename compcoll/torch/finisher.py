"""A thread that ends operations for which nobody waits in Python, and sees that they end in time."""

from __future__ import annotations

import time
from contextlib import suppress
from threading import Lock, Thread
from typing import Any

from compcoll.engine import _engine
from compcoll.engine.finalize import before_finalize

__all__ = ["SLICE", "finisher", "wait_for_callbacks"]

#: Seconds between two checks of time.
SLICE = 0.2


class _Finisher:
    """The thread, and the operations that it looks after."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._watched: list[Any] = []
        self._idle: list[Any] = []
        self._stopped = self._hurries = False
        self._thread = Thread(target=self._loop, name="compcoll-finisher", daemon=True)
        self._thread.start()
        before_finalize(self.stop)

    def watch(self, operation: Any) -> None:
        """See that an operation ends in time though nobody waits for it in Python."""
        self._add(self._watched, operation)

    def attend(self, operation: Any) -> None:
        """Leave an operation to the engine unless it ends before long, by itself or as somebody waits."""
        self._add(self._idle, operation)

    def _add(self, to: list[Any], operation: Any) -> None:
        with self._lock:
            to.append(operation)
        if not self._hurries:
            _engine.wake_client()

    def _loop(self) -> None:
        looked = time.monotonic()
        while not self._stopped:
            self._hurries = bool(self._watched or self._idle)
            for started in _engine.take_done(SLICE if self._hurries else 1e6):
                started.operation.finish()  # which raises nothing
            if time.monotonic() - looked < SLICE:
                continue
            looked = time.monotonic()
            with self._lock:
                idle, watched = self._idle[:], self._watched[:]
                self._idle.clear()
            for operation in idle:
                operation.submit()
            ended = [operation for operation in watched if not operation.check()]
            with self._lock:
                self._watched[:] = [operation for operation in self._watched if operation not in ended]

    def wait_for_callbacks(self) -> None:
        """Wait for the operations whose futures have callbacks in Python, unless they fail."""
        with self._lock:
            watched = self._watched[:]
        for operation in watched:
            if operation.has_callbacks:
                with suppress(Exception):
                    operation.wait(operation.limit)

    def stop(self) -> None:
        self._stopped = True
        _engine.wake_client()
        self._thread.join()


_finishers: list[_Finisher] = []
_one = Lock()


def wait_for_callbacks() -> None:
    """Wait for the operations of this process whose futures have callbacks in Python."""
    for one in _finishers:
        one.wait_for_callbacks()


def finisher() -> _Finisher:
    """The process's, which runs from now on."""
    with _one:
        if not _finishers:
            _finishers.append(_Finisher())
        return _finishers[0]
