"""A thread that moves nonblocking operations on while the program computes."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from time import sleep

__all__ = ["PROGRESS"]

#: Pause between two looks at what is under way, in seconds.
PAUSE = 20e-6


class Progress:
    """Calls what it watches, again and again, until each says that it is done."""

    def __init__(self):
        self._tasks: list[Callable[[], bool]] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopped = False

    def watch(self, advance: Callable[[], bool]) -> None:
        """Call ``advance`` until it returns True."""
        with self._changed:
            self._tasks.append(advance)
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="compcoll-progress", daemon=True)
                self._thread.start()
                atexit.register(self._stop)
            self._changed.notify()

    def _loop(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._tasks or self._stopped)
                if self._stopped:
                    return
                tasks = list(self._tasks)
            done = [task for task in tasks if task()]
            with self._changed:
                for task in done:
                    self._tasks.remove(task)
            sleep(PAUSE)

    def _stop(self) -> None:
        """End before MPI does: no call may come after MPI_Finalize."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()


PROGRESS = Progress()
