"""The methods of communicators, replaced by ones that say when a call has ended.

Nothing is in the way of a program that is not watched. In one that is, each call of a method of
`compcoll.tracing.names.CALLS` on a class of compcoll's communicators is timed, and told once: what such a
method calls by itself is part of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import update_wrapper
from time import perf_counter
from typing import Any, Protocol

from compcoll.tracing.names import CALLS

__all__ = ["Ended", "Listener", "listen", "listener", "watch"]


@dataclass(slots=True)
class Ended:
    """A call that has returned, or raised.

    Attributes
    ----------
    name : str
        Of the method.
    comm : Wrapper
    args, kwargs
        Its arguments.
    start, end : float
        `time.perf_counter`.
    accelerated : bool
        Whether it went through compcoll.
    parts : list
        What the communicator kept of its parts, which vector collectives have several of; see
        `compcoll.mpi._shortcut.Gate.last`.
    result
        What it returned.
    problem : BaseException or None
        What it raised.
    """

    name: str
    comm: Any
    args: tuple
    kwargs: dict[str, Any]
    start: float
    end: float
    accelerated: bool
    parts: list
    result: Any
    problem: BaseException | None

    @property
    def outcomes(self) -> list:
        """What its accelerated parts did; none of a nonblocking call that has not ended yet."""
        return [part[2] for part in self.parts if type(part) is tuple and len(part) == 3]


class Listener(Protocol):
    """Who wants to know of calls."""

    def ended(self, call: Ended) -> None:
        """A method has returned or raised."""

    def completed(self, request: Any, last: tuple) -> None:
        """A nonblocking call has ended: that of a request, with what the communicator keeps of it."""


class _Here(threading.local):
    """Of each thread the parts of the call that is under way."""

    parts: list | None = None


_here = _Here()
_listener: Listener | None = None


def listener() -> Listener | None:
    """Who is told of calls."""
    return _listener


def listen(to: Listener) -> None:
    """Tell another one from now on."""
    global _listener
    _listener = to


def watch(classes: Iterable[type]) -> None:
    """Tell the listener of all calls on communicators of these classes."""
    for cls in classes:
        for name in CALLS:
            if hasattr(cls, name):
                setattr(cls, name, _watched(name, getattr(cls, name)))
        for name in ("_wait", "_completed"):
            setattr(cls, name, globals()[name](getattr(cls, name)))


def _watched(name: str, plain: Callable) -> Callable:
    def method(comm, *args, **kwargs):
        to = _listener
        if _here.parts is not None or to is None:
            return plain(comm, *args, **kwargs)
        before, count = comm._gate.last, comm.calls_accelerated
        comm._gate.last = result = problem = None
        parts = _here.parts = []
        start = perf_counter()
        try:
            result = plain(comm, *args, **kwargs)
            return result
        except BaseException as error:
            problem = error
            raise
        finally:
            end = perf_counter()
            _here.parts = None
            last = comm._gate.last
            if last is None:
                comm._gate.last = before
            elif not parts:
                parts.append(last)
            by_us = comm.calls_accelerated > count
            to.ended(Ended(name, comm, args, kwargs, start, end, by_us, parts, result, problem))
            problem = None

    return update_wrapper(method, plain)


def _wait(plain: Callable) -> Callable:
    """`Wrapper._wait`, after which a part of a call is done."""

    def method(comm, *args):
        try:
            plain(comm, *args)
        finally:
            if _here.parts is not None:
                _here.parts.append(comm._gate.last)

    return update_wrapper(method, plain)


def _completed(plain: Callable) -> Callable:
    """`Wrapper._completed`."""

    def method(comm, request, last):
        plain(comm, request, last)
        if _listener is not None:
            _listener.completed(request, last)

    return update_wrapper(method, plain)
