"""What moves runs on devices on while nobody waits for them: a thread of the process, or whoever comes by."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Condition, RLock, Thread
from time import perf_counter, sleep
from traceback import print_exc
from typing import Any

from mpi4py import MPI

from compcoll.engine import _engine
from compcoll.engine.device.run import DeviceRun, Patience
from compcoll.engine.finalize import before_finalize

__all__ = ["Mover", "mover"]

#: Seconds that the thread may take to end when the process does.
_GRACE = 1.0
#: What MPI may still write to when the process ends.
_abandoned: list[Any] = []


class _Left:
    """A run that somebody has left."""

    __slots__ = ("finished", "launched", "run")

    def __init__(self, run: DeviceRun, finished: Callable[[int], None] | None, launched: bool):
        self.run, self.finished, self.launched = run, finished, launched

    @property
    def over(self) -> bool:
        return self.run.launched if self.launched else self.run.done


class Mover:
    """Steps runs that were left, in a thread of its own where MPI may be called from any.

    The thread starts with the first run, sleeps while there is none, and ends with the process. Python's
    lock is its only for one step at a time; where nothing moves it sleeps up to 0.1 ms between two of them.

    Parameters
    ----------
    threaded : bool
        Whether there is such a thread; else `join` and `move_on` move runs on.
    """

    def __init__(self, threaded: bool):
        self._threaded = threaded
        self._left: list[_Left] = []
        self._changed = Condition()
        self._stepping = RLock()
        self._thread: Thread | None = None
        self._stopping = False

    def leave(
        self, run: DeviceRun, finished: Callable[[int], None] | None = None, launched: bool = False
    ) -> None:
        """Have a run moved on, which nobody else moves on from now on.

        Parameters
        ----------
        run : DeviceRun
        finished : callable, optional
            ``finished(end)``, with an end as `_engine` has it, by whichever thread comes to it.
        launched : bool
            Whether that is when it is `DeviceRun.launched`, and whoever is told goes on with it.
        """
        with self._changed:
            self._left.append(_Left(run, finished, launched))
            if self._threaded and self._thread is None and not self._stopping:
                before_finalize(self.stop)
                self._thread = Thread(target=self._work, name="compcoll-mover", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def join(self, run: DeviceRun, seconds: float) -> bool:
        """Wait for the end of a run that was left, for so long; whether it has ended."""
        if self._threaded:
            with self._changed:
                return self._changed.wait_for(lambda: not self._has(run), seconds)
        until, patience = perf_counter() + seconds, Patience()
        while self._has(run):
            if self.move_on():
                patience.moved()
            elif perf_counter() > until:
                return False
            else:
                patience.rest()
        return True

    def move_on(self) -> bool:
        """Step what was left, where there is no thread for it; whether anything moved."""
        return not self._threaded and self._step()

    def stop(self) -> None:
        """End the thread, and keep what is under way for good."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_GRACE)
        _abandoned.extend(self._left)

    def _has(self, run: DeviceRun) -> bool:
        return any(one.run is run for one in self._left)

    def _work(self) -> None:
        patience = Patience(spinning=0.0)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._left or self._stopping)
            if self._stopping:
                return
            try:
                if self._step():
                    patience.moved()
                    sleep(0)  # for others to have Python's lock
                else:
                    patience.rest()
            except TimeoutError:
                patience.moved()
                for one in list(self._left):
                    self._end(one, _engine.TIMEOUT)
            except Exception:  # of who was told; the others' runs go on
                print_exc()

    def _step(self) -> bool:
        """One step of each run."""
        moved = False
        with self._stepping:
            for one in list(self._left):
                end = _engine.DONE
                try:
                    moved |= one.run.step()
                    over = one.over
                except Exception as problem:
                    one.run.fail(problem)
                    over, end = True, _engine.BROKEN
                if over:
                    self._end(one, end)
                    moved = True
        return moved

    def _end(self, one: _Left, end: int) -> None:
        if end != _engine.DONE:
            _abandoned.append(one.run)
        try:
            if one.finished is not None:
                one.finished(end)
        finally:
            with self._changed, suppress(ValueError):
                self._left.remove(one)
                self._changed.notify_all()


_movers: list[Mover] = []
_making = RLock()


def mover() -> Mover:
    """The process's."""
    with _making:
        if not _movers:
            _movers.append(Mover(MPI.Query_thread() == MPI.THREAD_MULTIPLE))
        return _movers[0]
