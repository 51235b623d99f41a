"""Requests of a traced program, which note when they were complete."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from compcoll.engine import _engine

__all__ = ["Traced"]

_Plain = MPI.Request


class _Kind(type):
    """All requests are instances of the class that stands in the place of mpi4py's."""

    def __instancecheck__(cls, one: Any) -> bool:
        return isinstance(one, _Plain)

    def __subclasscheck__(cls, one: type) -> bool:
        return issubclass(one, _Plain)


class Traced(_Plain, metaclass=_Kind):
    """A request whose record is closed when it is found to be complete."""

    record: Any = None
    #: Identity of the request in whose place it is, and what the engine knows that by.
    key, state = 0, None
    #: What is told of those that are complete.
    close: Callable[[Traced], None] = staticmethod(lambda traced: None)

    def seen(self) -> None:
        """Close the record if there is one and the request is no more."""
        if self.record is not None and not self:
            Traced.close(self)


def _one(name: str) -> Callable:
    plain, waits = getattr(_Plain, name), name in ("Wait", "wait")

    def method(self, *args, **kwargs):
        try:
            if waits:
                _engine.finish((self,))
            return plain(self, *args, **kwargs)
        finally:
            self.seen()

    method.__name__, method.__doc__ = name, plain.__doc__
    return method


def _several(name: str) -> classmethod:
    def method(cls, requests, *args, **kwargs):
        try:
            return getattr(_Plain, name)(requests, *args, **kwargs)  # which may be another one from now on
        finally:
            for request in requests:
                if type(request) is Traced:
                    request.seen()

    method.__name__, method.__doc__ = name, getattr(_Plain, name).__doc__
    return classmethod(method)


for _name in ("Wait", "Test", "wait", "test", "Free", "free"):
    setattr(Traced, _name, _one(_name))
for _name in ("Waitall", "Waitany", "Waitsome", "Testall", "Testany", "Testsome"):
    setattr(Traced, _name, _several(_name))
    setattr(Traced, _name.lower(), _several(_name.lower()))
