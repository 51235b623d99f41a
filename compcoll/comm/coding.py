"""Codecs in the form that the engine takes."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from compcoll.codecs import Codec
from compcoll.core import dtypes
from compcoll.core._cpu import Coding
from compcoll.engine._engine import kept_back

__all__ = ["coding"]


@lru_cache(maxsize=256)
def coding(codec: Codec, element: np.dtype, plain: bool = False) -> Coding:
    """The `Coding` of a codec for blocks of the elements' real type; ``plain``: of frames without a checksum.

    Signal handlers wait until its calls of Python have returned.
    """
    dtype = dtypes.real_dtype(element)
    return codec.coding(dtype, kept_back, parts=dtype != element, plain=plain)
