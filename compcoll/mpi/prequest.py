"""A persistent request of a call that compcoll carries out.

MPI starts persistent requests of its own alone, so what `Start` does is begin the call anew, as its
nonblocking form, and have the handle of that request. Once that is complete the handle is null, which MPI's
functions on requests take as they take an inactive one: `Wait`, `Test` and those of several requests work
beside ordinary ones. Only `Prequest.Startall` would give null handles to MPI; from the first such request on
mpi4py's class has one that starts them, too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Literal

from mpi4py import MPI

from compcoll.core.patching import patch_method
from compcoll.engine import _engine, interrupts
from compcoll.mpi.requests import take_handle
from compcoll.mpi.waits import progress

__all__ = ["Prequest"]


class Prequest(MPI.Prequest):
    """A prepared call.

    Parameters
    ----------
    begin : callable
        Begins the call and returns the request of its nonblocking form.
    free : callable, optional
        Called when it will not begin any more.
    """

    _begin: Callable[[], MPI.Request] | None
    _free: Callable[[], None]
    _started: MPI.Request | None = None

    def __new__(cls, begin: Callable[[], MPI.Request], free: Callable[[], None] = lambda: None) -> Prequest:
        _teach_startall()
        self = super().__new__(cls)
        self._begin, self._free = begin, free
        return self

    def Start(self) -> None:
        """Initiate the call."""
        if self._begin is None or self._is_active():
            raise MPI.Exception(MPI.ERR_REQUEST)
        with interrupts.deferred():  # until the request is known to be active
            self._started = self._begin()
            take_handle(self, self._started)

    @property
    def state(self) -> _engine.GrequestState | None:
        """What the engine knows the call under way by; None where it has no part in that."""
        return getattr(self._started, "state", None) if self._is_active() else None

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Wait for the end, and meanwhile do what is left to do for it."""
        return progress((self,), super().Wait, status)

    def Free(self) -> None:
        """Free the request; a message under way goes on."""
        if self._begin is None:
            raise MPI.Exception(MPI.ERR_REQUEST)
        if self._is_active() and self._started is not None:
            self._started.Free()
            take_handle(self, MPI.REQUEST_NULL)
        self._begin = self._started = None
        self._free()

    def free(self) -> None:
        """Call `Free` if not null."""
        if self:
            self.Free()

    def _is_active(self) -> bool:
        return MPI.Prequest.__bool__(self)

    def __bool__(self) -> bool:
        return self._begin is not None

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Prequest) or not isinstance(other, MPI.Request):
            return self is other
        return bool(self) == bool(other) and MPI.Prequest.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other


_startall = MPI.Prequest.Startall


@cache
def _teach_startall() -> None:
    """Have mpi4py's `Prequest.Startall` start what has a `Start` of its own."""

    def Startall(cls: type, requests: list[MPI.Prequest]) -> None:
        """Start a collection of persistent requests."""
        if not any(isinstance(request, Prequest) for request in requests):
            _startall(requests)
            return
        for request in requests:
            request.Start()

    patch_method(MPI.Prequest, "Startall", classmethod(Startall))
