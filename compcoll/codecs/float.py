"""``float``: coded exponents and unchanged mantissas, for weights, gradients and other noisy numbers."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from compcoll.codecs.base import Codec
from compcoll.core import dtypes

VERSION = 1


class Float(Codec):
    """Lossless compression of floating-point numbers that do not predict each other.

    Notes
    -----
    Each chunk of 32 KiB has a Huffman code of at most 16 symbols for its exponents, and leaves out every
    other bit that is equal in the whole chunk. ``csrc/float.h`` has the byte layout. The first word in the
    frame header is the version of that layout.
    """

    name = "float"
    lossless = True
    dtypes: ClassVar[frozenset[np.dtype]] = dtypes.FLOATS

    def params(self, dtype: np.dtype, shape: tuple[int, ...]) -> tuple[int, int]:
        return (VERSION, 0)
