"""Parsing of sizes such as ``64K``."""

from __future__ import annotations

import re
from fractions import Fraction
from operator import index
from typing import Any

__all__ = ["nbytes_of"]

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMG]?)\s*", re.IGNORECASE)


def nbytes_of(value: Any) -> int:
    """A number of bytes from an integer, NumPy's too, or from text such as ``"65536"``, ``"64K"`` or
    ``"1.5M"``.

    Raises
    ------
    ValueError
        For anything else, and for numbers that are not whole.
    """
    if isinstance(value, str) and (found := _SIZE.fullmatch(value)):
        nbytes = Fraction(found[1]) * _UNITS[found[2].upper()]
        if nbytes.denominator == 1:
            return int(nbytes)
    elif not isinstance(value, (str, bool)):
        try:
            return index(value)
        except TypeError:
            pass
    raise ValueError(f"{value!r} is not a whole number of bytes such as 65536, '64K' or '1M'")
