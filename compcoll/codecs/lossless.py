"""``lossless``: the best of the lossless codecs for the data at hand."""

from __future__ import annotations

import numpy as np

from compcoll.codecs import sample
from compcoll.codecs.base import Codec
from compcoll.codecs.registry import codec

# In the order of csrc/cpu/lossless.cpp.
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
        return _named(*sample.choose(src))

    def chosen_from(self, taken: np.ndarray, dtype: np.dtype, shape: tuple[int, ...]) -> tuple[Codec, ...]:
        """`chosen` for an array of which only the sample (`compcoll.codecs.sample`) is given."""
        return _named(*sample.choose_from(taken, dtype, shape))


def _named(choice: int, parameter: int) -> tuple[Codec, ...]:
    if choice == RAW:
        return (codec("raw"),)
    return codec(f"mpc:dim={parameter}" if choice == MPC else "float"), codec("raw")
