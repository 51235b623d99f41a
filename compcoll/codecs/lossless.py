"""``lossless``: the best of the lossless codecs for the data at hand."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from compcoll.codecs.base import Codec
from compcoll.codecs.registry import codec


class Lossless(Codec):
    """Chooses a lossless codec by dtype. The frame names what it chose, so a sender may choose alone."""

    name = "lossless"
    lossless = True

    def _attempts(self, src: np.ndarray) -> Iterator[Codec]:
        yield codec("raw")
