"""``szp``: error-bounded compression with an absolute bound that every value keeps."""

from __future__ import annotations

import copy
import math
import struct

import numpy as np

from compcoll.codecs import options
from compcoll.codecs.base import Codec
from compcoll.core import dtypes

#: Limits of the absolute bound (csrc/szp.h): the quantisation step and its inverse stay normal float64.
BOUND_MIN, BOUND_MAX = 2.0**-1022, 2.0**1020
#: Part of a complex number's error that each of its parts may have; a little less, because of later rounding.
_PART = math.sqrt(0.5) * (1 - 2.0**-50)


class SZP(Codec):
    """Error-bounded quantisation, differences and a fixed bit length per block of 32 values.

    Parameters
    ----------
    abs : float, optional
        Largest absolute error of any value, from 2**-1022 to 2**1020; ``|x - x'|`` for complex numbers.
    rel : float, optional
        Largest error as a fraction of each array's range, max - min over finite values, real and imaginary
        parts alike. Give at most one of the two; the default is ``rel=1e-3``.

    Raises
    ------
    ValueError
        For a bound that is not positive and finite or outside of the limits, or for both of them.

    Notes
    -----
    Blocks with values that are not finite, or too large to keep the bound, are stored unchanged: the bound
    holds for every finite value, and other values keep their bits. Complex numbers are pairs of real ones,
    each of which keeps the bound divided by the square root of 2. ``csrc/szp.h`` gives the byte layout, and
    the error of sums.

    The scheme is from Huang et al., "cuSZp: An Ultra-Fast GPU Error-Bounded Lossy Compression
    Framework with Optimized End-to-End Performance", SC 2023.
    """

    name = "szp"
    lossless = False
    typical = ("szp:rel=1e-3", "szp:rel=1e-5")
    dtypes = dtypes.FLOATS

    def __init__(self, abs: float | None = None, rel: float | None = None):
        if abs is not None and rel is not None:
            raise ValueError(f"szp takes one bound, and both abs={abs} and rel={rel} are given")
        if abs is None and rel is None:
            rel = 1e-3
        self.abs: float | None
        self.rel: float | None
        if abs is not None:
            self.abs, self.rel = options.number("szp", "abs", abs, BOUND_MIN, BOUND_MAX), None
        else:
            self.abs, self.rel = None, options.number("szp", "rel", rel, BOUND_MIN, BOUND_MAX)

    def options(self) -> dict[str, object]:
        if self.abs is not None:
            return {"abs": self.abs}
        return {"rel": self.rel}

    def params(self, dtype: np.dtype, shape: tuple[int, ...]) -> tuple[int, int]:
        if dtype.kind == "c":
            return self.of_parts().params(dtypes.real_dtype(dtype), shape)
        # The encoder computes the absolute bound from the relative one.
        if self.abs is not None:
            return (_bits(self.abs), 0)
        return (0, _bits(self.rel))  # type: ignore[arg-type]

    def of_parts(self) -> SZP:
        """Get a codec for real and imaginary parts that keeps this codec's bound on complex numbers."""
        made = copy.copy(self)  # its bound may be below the limits
        made.abs, made.rel = (one if one is None else one * _PART for one in (self.abs, self.rel))
        return made

    @property
    def can_add(self) -> bool:
        """True if frames can be added without decoding; false with ``rel``, whose bound differs by chunk."""
        return self.abs is not None and super().can_add


def _bits(value: float) -> int:
    return struct.unpack("<Q", struct.pack("<d", value))[0]
