"""Signals in the middle of a call; see `compcoll.engine._interrupts`."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from compcoll.engine._interrupts import check, deferred, raise_pending

__all__ = ["check", "deferred", "raise_pending", "undivided"]


P = ParamSpec("P")
R = TypeVar("R")


def undivided(method: Callable[P, R]) -> Callable[P, R]:
    """Decorate a call that consists of several of MPI's, between which no handler of a signal may raise."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with deferred():
            return method(*args, **kwargs)

    return call
