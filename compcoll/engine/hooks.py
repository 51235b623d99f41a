"""What watches calls.

Attributes
----------
ends : list of callable
    ``hook(request, last)`` is called when the message of a request has ended.
watched : int
    Whether this process's calls are counted (1) or written down (2).
meets : list of callable
    ``hook(marked, level)`` is called by all ranks of a communicator that is wrapped where all are watched, at
    the lowest level of theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["ends", "meets", "watched"]

ends: list[Callable[[Any, tuple], None]] = []
meets: list[Callable[[Any, int], None]] = []
watched = 0
