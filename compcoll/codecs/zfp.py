"""``zfp``: the fixed-rate mode of ZFP, in blocks of 4, 4x4 or 4x4x4 values."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from compcoll.codecs.base import Codec
from compcoll.codecs.shapes import PADDING, fitted
from compcoll.core import dtypes

__all__ = ["ZFP"]


class ZFP(Codec):
    """Fixed-rate ZFP: every block of 4^d values takes the same number of bits.

    Parameters
    ----------
    rate : float
        Bits per value, more than 0 and at most 64; float32, complex64 and 16-bit types take at most 32.
        A block has ``floor(4^d rate + 1/2)`` bits, at least 9 (float64: 12).

    Raises
    ------
    ValueError
        For a rate outside of its limits.

    Notes
    -----
    The payload is the bare stream of the zfp library: ``zfpy.compress_numpy(a, rate=rate,
    write_header=False)`` writes the same bytes. ``csrc/zfp.h`` has its layout and error bound. The first
    header word is the block's bits, the second 0. Complex arrays are coded as real ones with the last axis
    doubled, float16 and bfloat16 arrays as float32.

    Arrays with NaN or Inf, with a block of values below 2^-98 (float64: 2^-962) in magnitude, or with values
    from 2^125 (2^1021) on are not representable and are coded losslessly.

    References
    ----------
    P. Lindstrom, "Fixed-rate compressed floating-point arrays", IEEE TVCG 20(12), 2014.
    """

    name = "zfp"
    lossless = False
    has_shape = True
    typical = ("zfp:rate=8", "zfp:rate=16")
    dtypes: ClassVar[frozenset[np.dtype]] = dtypes.FLOATS

    def __init__(self, rate: float = 16):
        if isinstance(rate, str) or not math.isfinite(rate) or not 0 < rate <= 64:
            raise ValueError(f"rate = {rate!r} bits per value is not a number above 0 and up to 64")
        self.rate = int(rate) if rate == int(rate) else float(rate)

    def options(self) -> dict[str, object]:
        return {"rate": self.rate}

    def params(self, dtype: np.dtype, shape: tuple[int, ...]) -> tuple[int, int]:
        return (self.block_bits(dtype, len(shape)), 0)

    def shaped(self, dtype: np.dtype, shape: tuple[int, ...], largest_plane: int) -> tuple[int, ...]:
        room = 8 * dtypes.real_dtype(dtype).itemsize / self.rate - 1  # more is larger than the array
        return fitted(shape, largest_plane, min(PADDING, room))

    def block_bits(self, dtype, ndim: int) -> int:
        """Bits of one block of 4^ndim values; ValueError if the dtype has fewer than `rate` bits."""
        word = 8 * max(dtypes.real_dtype(np.dtype(dtype)).itemsize, 4)
        if self.rate > word:
            raise ValueError(f"rate = {self.rate} bits per value is more than the {word} that {dtype} takes")
        return max(math.floor(4 ** max(ndim, 1) * self.rate + 0.5), 9 if word == 32 else 12)
