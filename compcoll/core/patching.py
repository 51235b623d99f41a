"""Other methods for classes that are written in C."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import Any

__all__ = ["patch_method"]


def patch_method(cls: type, name: str, method: Callable[..., Any] | classmethod) -> None:
    """Put another method into the place of one of a class in C, which has no other way."""
    (attributes,) = (a for a in gc.get_referents(cls.__dict__) if isinstance(a, dict))
    attributes[name] = method
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(cls))
