"""``lossless``: the best of the lossless codecs for the data at hand."""

from __future__ import annotations

import numpy as np

from compcoll.codecs.base import Codec
from compcoll.codecs.registry import codec
from compcoll.core import _cpu, dtypes

# In the order of csrc/lossless.h.
RAW, MPC, FLOAT = range(3)


class Lossless(Codec):
    """Choose a lossless codec for each array.

    Integers take ``mpc``, 16-bit floats ``float``, and other types the one that makes a sample smaller;
    arrays that do not shrink take ``raw``. The sample is at most 32 KiB and, of large arrays, at most 1/32.
    The choice depends on dtype, shape and data alone. The frame names the chosen codec, so a sender may
    choose alone, and no frame is named ``lossless``.
    """

    name = "lossless"
    lossless = True
    chooses = True

    def attempts(self, dtype: np.dtype) -> tuple[Codec, ...]:
        return (self,)

    def chosen(self, src: np.ndarray) -> tuple[Codec, ...]:
        choice, parameter = choose(src)
        if choice == RAW:
            return (codec("raw"),)
        return codec(f"mpc:dim={parameter}" if choice == MPC else "float"), codec("raw")


def choose(src: np.ndarray) -> tuple[int, int]:
    """The codec for an array, by its ordinal, and that codec's parameter."""
    code, data = dtypes.code_of(src.dtype), src.reshape(-1).view(np.uint8)
    return _cpu.encode(Lossless._index, code, src.shape or (1,), (0, 0), data, np.empty(0, np.uint8))[2]
