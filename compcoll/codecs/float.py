"""``float``: exponents coded, everything else as it is; for weights, gradients and other noisy numbers."""

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
    Chunks of 32 KiB, each with a Huffman code of at most 16 symbols for its exponents and with every
    other bit left out that is equal in the whole chunk. The byte layout stands in ``csrc/float.h``. The
    first word of the frame header's two is the version of that layout.
    """

    name = "float"
    lossless = True
    dtypes: ClassVar[frozenset[np.dtype]] = dtypes.FLOATS

    def params(self, dtype: np.dtype, shape: tuple[int, ...]) -> tuple[int, int]:
        return (VERSION, 0)
