"""What devices still do for operations that are done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist

from compcoll.engine import _engine
from compcoll.torch.gpu import End, Order
from compcoll.torch.tensor_buffers import Placed

__all__ = ["Tails"]


class Tails:
    """The runs of a group whose last kernels were launched, and have yet to end.

    Parameters
    ----------
    failed : callable
        ``failed(reason)``, where one goes wrong.
    """

    def __init__(self, failed: Callable[[str], None]):
        self._failed = failed
        self._runs: list[_engine.Running] = []
        self._ends: list[End] = []

    def order(self, *placed: Placed) -> Order:
        """The place of an operation with such memory: after the caller's streams, and earlier ones."""
        gpus = [gpu for one in placed for gpu in one.gpus]
        if not gpus:
            return Order(())
        for end in list(self._ends):  # to which others may add meanwhile
            if end.done:
                self._ends.remove(end)
        return Order(gpus, list(self._ends))

    def keep(self, ends: Sequence[End]) -> None:
        """Have later operations come after these."""
        self._ends += ends

    def at_end(self, task: Any, op: str, then: Callable[[], None]) -> None:
        """Do something when a task, which was launched, has ended."""
        if task.done:
            then()
            return

        def ended(end: int) -> None:
            try:
                task.check()
                if end != _engine.DONE:
                    raise dist.DistBackendError("it was left half-way")
                then()
            except Exception as error:
                self._failed(f"{op}: {error}")
            finally:
                self._runs.remove(task)

        self._runs.append(task)
        _engine.leave(task, ended)

    def flush(self, seconds: float) -> None:
        """Wait for the ends of all, each for so long at most."""
        for run in list(self._runs):
            _engine.join(run, seconds)
