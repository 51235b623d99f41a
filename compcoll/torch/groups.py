"""Registry of the process groups of this process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["add", "all_groups", "lost_groups", "next_serial", "remove"]

_groups: list[Any] = []
#: Groups that were destroyed after an error: some of their operations may never end.
_lost: list[Any] = []
_serials = [0]


def add(group: Any) -> None:
    """Register a new group."""
    _groups.append(group)


def remove(group: Any, *, is_lost: bool = False) -> None:
    """Remove a group; one ``is_lost`` has operations that may never end."""
    _groups.remove(group)
    if is_lost:
        _lost.append(group)


def all_groups() -> list[Any]:
    """Every group, in the order in which they were made."""
    return list(_groups)


def lost_groups() -> list[Any]:
    """Groups that were removed with operations that may never end."""
    return list(_lost)


def next_serial(known: Iterable[int] = ()) -> int:
    """The next number that no group of this rank has had; ``known`` are the numbers of the group's ranks."""
    _serials[0] = max(_serials[0], *known, 0)
    return _serials[0] + 1
