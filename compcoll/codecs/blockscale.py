"""The base of ``int8``, ``int4`` and ``fp8``: small codes, and one scale per block of values."""

from __future__ import annotations

import numpy as np

from compcoll.codecs import options
from compcoll.codecs.base import Codec
from compcoll.core import dtypes

BLOCKS = (32, 64, 128, 256)


class BlockScaled(Codec):
    """Codes relative to the largest magnitude of each block.

    Parameters
    ----------
    block : int
        Values that share a scale: 32, 64, 128 or 256.
    rounding : {"nearest", "stochastic"}
        Stochastic rounding is unbiased: the mean of the rounded values is the value, up to the rounding of
        the result to its dtype.
    seed : int
        From 0 to 2**64 - 1, for stochastic rounding; equal seeds and inputs give equal bytes.

    Raises
    ------
    ValueError
        For an option that is none of these.

    Notes
    -----
    The size of a payload depends only on dtype and number of values. An array with values that are not finite
    is coded losslessly. Complex numbers are pairs of real ones. ``csrc/blockscale.h`` gives the byte layout
    and the error bounds.
    """

    lossless = False
    dtypes = dtypes.FLOATS

    def __init__(self, block: int = 64, rounding: str = "nearest", seed: int = 0):
        if not isinstance(block, int) or block not in BLOCKS:
            raise ValueError(f"{self.name}: block={block} is not one of {', '.join(map(str, BLOCKS))}")
        self.block = block
        self.rounding, self.seed = options.rounding(self.name, rounding, seed)

    def options(self) -> dict[str, object]:
        given = {"block": self.block, "rounding": self.rounding, "seed": self.seed}
        default = {"block": 64, "rounding": "nearest", "seed": 0}
        return {key: value for key, value in given.items() if value != default[key]}

    def params(self, dtype: np.dtype, shape: tuple[int, ...]) -> tuple[int, int]:
        return (self.block | options.ROUNDINGS.index(self.rounding) << 32, self.seed)
