"""``lossless``: chooses a lossless codec by a sample of the data."""

from __future__ import annotations

import numpy as np

from compcoll.codecs.base import Codec


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
