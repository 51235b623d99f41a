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
samples : list of callable
    ``hook(op, element, nbytes, values)`` is called with some of the real numbers that this rank sends when a
    call is decided on; its values are valid until the hook returns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["meets", "objects", "samples", "watched"]

objects: list[Callable[[int], None]] = []
meets: list[Callable[[Any, int], None]] = []
samples: list[Callable[[str, np.dtype, int, np.ndarray], None]] = []
watched = 0
