"""``lossless``: the best of the lossless codecs for the data at hand."""

from __future__ import annotations

import numpy as np

from compcoll.codecs import sample
from compcoll.codecs.base import Codec
from compcoll.codecs.registry import codec

# In the order of csrc/cpu/lossless.cpp.
RAW, MPC, FLOAT = range(3)


class Lossless(Codec):
    """Chooses a lossless codec: `mpc` for integers, `float` for 16-bit floats, and for the others
    whichever makes a sample smaller; `raw` where that gains nothing.

    The sample is at most 32 KiB and, of large arrays, at most 1/32. The choice depends on dtype, shape
    and data alone. The frame names what was chosen, so a sender may choose alone, and no frame is named
    ``lossless``.
    """

    name = "lossless"
    lossless = True
    chooses = True

    def attempts(self, dtype: np.dtype) -> tuple[Codec, ...]:
        return (self,)

    def chosen(self, src: np.ndarray) -> tuple[Codec, ...]:
        return self.named(*sample.choose(src))

    @staticmethod
    def named(choice: int, parameter: int) -> tuple[Codec, ...]:
        """The codecs to try in turn after a choice of `compcoll.codecs.sample`."""
        if choice == RAW:
            return (codec("raw"),)
        return codec(f"mpc:dim={parameter}" if choice == MPC else "float"), codec("raw")
