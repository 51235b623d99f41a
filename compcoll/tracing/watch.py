"""Interception of calls: the classes of communicators are patched in a program that is traced."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import update_wrapper
from typing import Any

from compcoll.tracing._watch import Watched, part
from compcoll.tracing.names import CALLS, FROM_ROOT, RECEIVES, TWO_BUFFERS

__all__ = ["watch"]


def watch(classes: Iterable[Any], completed: Callable[[Any, tuple], None]) -> None:
    """Have all calls on communicators of these classes noted by the recorder that is active.

    Parameters
    ----------
    classes : iterable of type
        Subclasses of `compcoll.mpi.core.CommBase`.
    completed : callable
        ``completed(request, last)`` is called when the nonblocking call of a request has ended, with what the
        communicator keeps of it.
    """
    for cls in classes:
        for name in CALLS:
            plain = getattr(cls, name, None)
            if plain is not None:
                second = name in TWO_BUFFERS
                watched = Watched(name, plain, name in RECEIVES, second or name in FROM_ROOT, second)
                setattr(cls, name, watched)
        cls._wait = _noting_parts(cls._wait)
        cls._completed = _noting_ends(cls._completed, completed)


def _noting_parts(plain: Callable) -> Callable:
    """`CommBase._wait`: a part of a call is done."""

    def method(comm, *args):
        try:
            plain(comm, *args)
        finally:
            part(comm._gate.last)

    return update_wrapper(method, plain)


def _noting_ends(plain: Callable, completed: Callable[[Any, tuple], None]) -> Callable:
    """`CommBase._completed`."""

    def method(comm, request, last):
        plain(comm, request, last)
        completed(request, last)

    return update_wrapper(method, plain)
