"""The groups that there are: what `core.Core` makes, and what policies and reports go through."""

from __future__ import annotations

from typing import Any

__all__ = ["add", "cores", "remove"]

_cores: list[Any] = []


def add(core: Any) -> None:
    """A group was made."""
    _cores.append(core)


def remove(core: Any) -> None:
    """A group has ended."""
    _cores.remove(core)


def cores() -> list[Any]:
    """All of them, in the order in which they were made."""
    return list(_cores)
