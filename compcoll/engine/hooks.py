"""Callbacks for calls and communicators.

Attributes
----------
objects : list of callable
    ``hook(saved_nbytes)`` is called when a call of objects has packed arrays.
watched : int
    Level at which this process's calls are watched: 0, counted (1) or written to a trace (2).
meets : list of callable
    All ranks of a communicator call ``hook(marked, level)`` when it is wrapped, if all ranks are watched;
    ``level`` is their lowest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["meets", "objects", "watched"]

objects: list[Callable[[int], None]] = []
meets: list[Callable[[Any, int], None]] = []
watched = 0
