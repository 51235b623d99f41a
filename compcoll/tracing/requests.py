"""Requests of a traced program: mpi4py's own, whose methods note when they are complete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import update_wrapper
from typing import Any

from mpi4py import MPI

from compcoll.core.patching import patch_method

__all__ = ["watch_requests"]

_ONE = ("Wait", "Test", "wait", "test", "Free", "free")
_SEVERAL = ("Waitall", "Waitany", "Waitsome", "Testall", "Testany", "Testsome")


def watch_requests(seen: Callable[[Sequence[MPI.Request]], None]) -> None:
    """Have ``seen(requests)`` called with those that a method of `MPI.Request` has looked at."""
    for name in _ONE:
        patch_method(MPI.Request, name, _one(getattr(MPI.Request, name), seen))
    for name in (*_SEVERAL, *map(str.lower, _SEVERAL)):
        patch_method(MPI.Request, name, classmethod(_several(getattr(MPI.Request, name), seen)))


def _one(plain: Callable[..., Any], seen: Callable[[Sequence[MPI.Request]], None]) -> Callable[..., Any]:
    def method(self: MPI.Request, *args: Any, **kwargs: Any) -> Any:
        try:
            return plain(self, *args, **kwargs)
        finally:
            seen((self,))

    return update_wrapper(method, plain)


def _several(plain: Callable[..., Any], seen: Callable[[Sequence[MPI.Request]], None]) -> Callable[..., Any]:
    def method(cls: type, requests: Sequence[MPI.Request], *args: Any, **kwargs: Any) -> Any:
        try:
            return plain(requests, *args, **kwargs)
        finally:
            seen(requests)

    return update_wrapper(method, plain)
