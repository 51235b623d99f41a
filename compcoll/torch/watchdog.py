"""A thread that looks after futures: C++, which waits for those of `DistributedDataParallel`, does not."""

from __future__ import annotations

import atexit
import time
from threading import Event, Thread
from typing import Any

import torch.distributed as dist
from mpi4py import MPI

__all__ = ["watch"]

#: Seconds between two looks.
_PAUSE = 0.2


class _Watchdog:
    def __init__(self) -> None:
        self._since: dict[Any, float] = {}
        self._stopped, self._wanted = False, Event()
        self._thread = Thread(target=self._loop, name="compcoll-watchdog", daemon=True)
        self._thread.start()
        atexit.register(self._stop)

    def add(self, work: Any) -> None:
        """Have a work end with an error when its time is up, or others have left."""
        self._since[work] = time.monotonic()
        self._wanted.set()

    def _loop(self) -> None:
        while self._wanted.wait() and not self._stopped:
            time.sleep(_PAUSE)
            for work, since in list(self._since.items()):
                if work.is_done() or self._stopped:
                    del self._since[work]
                    continue
                try:
                    work.check_time(time.monotonic() - since, work.limit)
                except dist.DistBackendError as error:
                    work.give_up(error)
            if not self._since:
                self._wanted.clear()
                if self._since or self._stopped:  # meanwhile
                    self._wanted.set()

    def _stop(self) -> None:
        self._stopped = True
        self._wanted.set()
        self._thread.join()


_watchdog: list[_Watchdog] = []


def watch(work: Any) -> None:
    """Have a work watched until it is done, where a thread may call MPI."""
    if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
        if not _watchdog:
            _watchdog.append(_Watchdog())
        _watchdog[0].add(work)
