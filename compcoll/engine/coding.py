"""Codecs as the engine takes them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from compcoll.codecs import Codec
from compcoll.core._cpu import Coding
from compcoll.engine._engine import kept_back

__all__ = ["coding"]


@lru_cache(maxsize=256)
def coding(codec: Codec, dtype: np.dtype) -> Coding:
    """The `Coding` of a codec for blocks of a real type, in which handlers of signals wait for Python."""
    return codec.coding(dtype, kept_back)
