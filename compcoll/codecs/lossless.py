"""``lossless``: the best of the lossless codecs for the data at hand."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from compcoll import _cpu, dtypes
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

    def _attempts(self, src: np.ndarray) -> Iterator[Codec]:
        choice, parameter = self._choose(src)
        if choice == MPC:
            yield codec(f"mpc:dim={parameter}")
        elif choice == FLOAT:
            yield codec("float")
        yield codec("raw")

    def _choose(self, src: np.ndarray) -> tuple[int, int]:
        code, shape, flat = dtypes.code_of(src.dtype), src.shape or (1,), src.reshape(-1).view(np.uint8)
        return _cpu.encode(self._index, code, shape, (0, 0), flat, np.empty(0, np.uint8))[2]
