"""Functions that are told of calls and communicators.

Attributes
----------
objects : list of callable
    ``hook(saved_nbytes)`` is called when a call of objects has packed arrays.
watched : int
    Whether this process's calls are counted (1) or written down (2).
meets : list of callable
    ``hook(marked, level)`` is called by all ranks of a communicator that is wrapped where all are watched, at
    the lowest level of theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["meets", "objects", "watched"]

objects: list[Callable[[int], None]] = []
meets: list[Callable[[Any, int], None]] = []
watched = 0
