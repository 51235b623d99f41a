"""A thread that looks after what nobody waits for in Python: futures, which C++ waits for, and messages."""

from __future__ import annotations

import atexit
import time
from functools import cache
from threading import Event, Thread
from typing import Any

import torch.distributed as dist
from mpi4py import MPI

__all__ = ["may_watch", "watch", "watch_idle"]

#: Seconds between two looks.
_PAUSE = 0.2


class _Watchdog:
    def __init__(self) -> None:
        self._since: dict[Any, float] = {}
        self._idle: list[Any] = []
        self._stopped, self._wanted = False, Event()
        self._thread = Thread(target=self._loop, name="compcoll-watchdog", daemon=True)
        self._thread.start()
        atexit.register(self._stop)

    def add(self, work: Any) -> None:
        """Have a work end with an error when its time is up, or others have left."""
        self._since[work] = time.monotonic()
        self._wanted.set()

    def add_idle(self, work: Any) -> None:
        """Leave a work to the engine's thread, where nobody waits for it before long."""
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
                    work.give_up(error)
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
    """Have a work watched until it is done, where a thread may do that."""
    if may_watch():
        _watchdog().add(work)


def watch_idle(work: Any) -> None:
    """Have a work progressed before long, whether or not somebody waits for it."""
    if may_watch():
        _watchdog().add_idle(work)
