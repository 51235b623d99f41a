"""What is under way behind a generalised request, which MPI knows how to wait for beside its own."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

from mpi4py import MPI

from compcoll.engine import _engine
from compcoll.engine.call import Task
from compcoll.mpi.waits import patch_waits, progress

__all__ = ["Pending", "Request", "Settled", "take_handle"]


def take_handle(into: MPI.Request, of: MPI.Request) -> None:
    """Give a request the handle of another one."""
    ctypes.memmove(MPI._addressof(into), MPI._addressof(of), MPI._sizeof(MPI.Request))


class Request(MPI.Request):
    """A generalised request, which may be freed before it is complete.

    Parameters
    ----------
    query, cancel : callable
        As for `compcoll.engine._engine.start_request`.
    """

    #: What the engine knows it by.
    state: _engine.GrequestState

    def __new__(
        cls, query: Callable[[MPI.Status], None], cancel: Callable[[bool], None] | None = None
    ) -> Request:  # fmt: skip
        patch_waits()
        self = super().__new__(cls)
        self.state = _engine.start_request(self, query, cancel)
        return self

    def complete(self) -> None:
        """Say that it is complete."""
        _engine.complete_request(self.state)

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Wait for the end, and meanwhile do what is left to do for it."""
        return progress((self,), super().Wait, status)

    def wait(self, status: MPI.Status | None = None) -> Any:
        """As `Wait`."""
        return progress((self,), super().wait, status)

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Whether it has ended, after doing what can be done for it."""
        if self:
            _engine.step()
        return super().Test(status)


Settled: TypeAlias = Callable[[MPI.Request, Exception | None], None]


class Pending:
    """Tasks that the engine moves on.

    Parameters
    ----------
    tasks : sequence of Task
    settled : callable
        ``settled(request, error)`` is called once, when the request is waited for, with what went wrong; that
        is then raised, or what ``settled`` raises.
    status : callable, optional
        ``status(status)`` fills the request's; without it, that of a send.
    cancel : callable, optional

    Attributes
    ----------
    request : MPI.Request
    """

    def __init__(
        self, tasks: Sequence[Task], settled: Settled, *,
        status: Callable[[MPI.Status], None] | None = None, cancel: Callable[[], None] | None = None,
    ):  # fmt: skip
        self._settled, self._status, self._cancelled = settled, status, cancel
        self._error: Exception | None = None
        self._is_settled = False
        self.request = Request(self._query, self._cancel if cancel is not None else None)
        task: Any = tasks[0] if len(tasks) == 1 else _engine.TaskGroup(tasks)
        self._task = task
        _engine.leave(task, None, self.request.state)

    def join(self) -> None:
        """Wait for the end of all tasks, not for what the caller is told of them."""
        if self._task is not None:
            _engine.join(self._task)

    @property
    def ended(self) -> bool:
        """Whether all tasks have ended."""
        return self._task is None or self._task.ended

    def _query(self, status: MPI.Status) -> None:
        """The request was waited for, or found to be complete."""
        if self._status is not None:
            self._status(status)
        if self._is_settled:
            self._raise()
            return
        self._is_settled = True
        task, settled = self._task, self._settled
        self._task, self._settled = None, _nothing  # whose buffers the request need not keep
        try:
            _engine.settled(task)
            task.check()
        except Exception as error:
            self._error = self._error or error
        try:
            settled(self.request, self._error)
        except Exception as error:
            self._error = self._error or error
        self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _cancel(self, completed: bool) -> None:
        if not completed and self._cancelled is not None:
            self._cancelled()


def _nothing(request: MPI.Request, error: Exception | None) -> None:
    """A request is settled once."""
