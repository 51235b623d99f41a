"""Futures of operations, which DDP and others wait for in place of a `Work`, and the watchdog."""

from __future__ import annotations

import atexit
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache
from threading import Event, Lock, Thread
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI

from compcoll.engine.finalize import before_finalize
from compcoll.torch.gpu import future_devices

__all__ = ["Future", "may_watch", "watch", "watch_idle"]

#: Seconds between two looks of the watchdog.
_PAUSE = 0.2


#: Threads that call callbacks: Python ends a process whose thread comes back from C++ after all else.
_callers: list[Thread] = []
_lock = Lock()


def _join_callers() -> None:
    while _callers:
        _callers.pop().join()


class _Failure:
    """The value of a future that ends with an error.

    C++ pickles a value to find its tensors, and crashes where there are none, as in torch's own
    `torch.futures.Future.set_exception`; so that raises the error, too.
    """

    def __init__(self, error: BaseException):
        self.error = error

    def __reduce__(self) -> Any:
        raise self.error

    def raise_error(self) -> None:
        """Raise the error where Python reads the value."""
        raise self.error


class Future(torch.futures.Future):
    """A future that knows whether it has callbacks in Python.

    One of tensors on GPUs keeps the order of streams: a wait for it, and callbacks, have the current streams
    come after the operation.
    """

    # From 2.14 on torch hands out another object for the same future, so that callbacks are not seen here.
    calls_python = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 14)

    def __init__(self, result: Sequence[torch.Tensor]):
        super().__init__(devices=future_devices(result))

    def then(self, callback):
        self.calls_python = True
        return super().then(callback)

    def add_done_callback(self, callback) -> None:
        self.calls_python = True
        super().add_done_callback(callback)

    def complete(self, result: Any, error: BaseException | None, events: Sequence[Any]) -> None:
        """Complete it; callbacks in Python may wait for operations, so they get a thread of their own."""
        if self.calls_python:
            args = result, error, events
            thread = Thread(target=self._complete, args=args, name="compcoll-future", daemon=True)
            with _lock:
                thread.start()
                _callers[:] = [thread, *filter(Thread.is_alive, _callers)]
                before_finalize(_join_callers)
        else:
            self._complete(result, error, events)

    def _complete(self, result: Any, error: BaseException | None, events: Sequence[Any]) -> None:
        if error is not None:
            self._set_unwrap_func(_Failure.raise_error)
            self.set_result(_Failure(error))
            return
        with ExitStack() as stack:  # it is done when these streams are
            for event in events:
                stack.enter_context(event.stream_context())
            self.set_result(result)


class _Watchdog:
    """A thread for operations without a waiter in Python: futures waited for in C++, small messages."""

    def __init__(self) -> None:
        self._since: dict[Any, float] = {}
        self._idle: list[Any] = []
        self._stopped, self._wanted = False, Event()
        self._thread = Thread(target=self._loop, name="compcoll-watchdog", daemon=True)
        self._thread.start()
        atexit.register(self._stop)

    def add(self, work: Any) -> None:
        self._since[work] = time.monotonic()
        self._wanted.set()

    def add_idle(self, work: Any) -> None:
        self._idle.append(work)
        if not self._wanted.is_set():
            self._wanted.set()

    def _loop(self) -> None:
        while self._wanted.wait() and not self._stopped:
            time.sleep(_PAUSE)
            idle, self._idle = self._idle, []
            self._idle += [work for work in idle if not (self._stopped or work.leave_idle())]
            for work, since in list(self._since.items()):
                if work.is_done() or self._stopped:
                    del self._since[work]
                    continue
                try:
                    work.check_time(time.monotonic() - since, work.limit)
                except dist.DistBackendError as error:
                    work.fail(error)
            if not self._since and not self._idle:
                self._wanted.clear()
                if self._since or self._idle or self._stopped:  # meanwhile
                    self._wanted.set()

    def _stop(self) -> None:
        self._stopped = True
        self._wanted.set()
        self._thread.join()


@cache
def _watchdog() -> _Watchdog:
    return _Watchdog()


@cache
def may_watch() -> bool:
    """Whether a thread may call MPI."""
    return MPI.Query_thread() == MPI.THREAD_MULTIPLE


def watch(work: Any) -> None:
    """End a work with an error when its time is up or its peers have left, if a thread may call MPI."""
    if may_watch():
        _watchdog().add(work)


def watch_idle(work: Any) -> None:
    """Leave a work to the engine's thread unless somebody waits for it before long."""
    if may_watch():
        _watchdog().add_idle(work)
