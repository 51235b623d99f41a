"""What watches calls.

Attributes
----------
parts : list of callable
    ``hook(last)`` is called when a part of a blocking call is done, with what its communicator keeps of it.
ends : list of callable
    ``hook(request, last)`` is called when the nonblocking call of a request has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["ends", "parts"]

parts: list[Callable[[Any], None]] = []
ends: list[Callable[[Any, tuple], None]] = []
