"""The process groups of this process."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import cache
from types import TracebackType
from typing import Any

import torch.distributed as dist
from mpi4py import MPI

from compcoll.core import errors

__all__ = ["MismatchError", "add", "cores", "next_serial", "remove"]

_cores: list[Any] = []
_serials = [0]


class MismatchError(dist.DistBackendError, errors.MismatchError):
    """Ranks of a group have called different operations."""


def add(core: Any) -> None:
    """Register a group that was made."""
    _notice_exceptions()
    _cores.append(core)


def remove(core: Any) -> None:
    """Remove a group that has ended."""
    _cores.remove(core)


def cores() -> list[Any]:
    """All groups, in the order in which they were made."""
    return list(_cores)


def next_serial(known: Iterable[int] = ()) -> int:
    """A number that no group of this rank has had; given those of all its ranks, the one to have."""
    _serials[0] = max(_serials[0], *known, 0)
    return _serials[0] + 1


@cache
def _notice_exceptions() -> None:
    """Tell the other ranks of all groups of an exception that nobody catches."""
    hook = sys.excepthook

    def tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        hook(kind, error, trace)
        if not MPI.Is_finalized():
            for core in _cores:
                core.leave(f"has ended with {kind.__name__}: {error}")

    sys.excepthook = tell
