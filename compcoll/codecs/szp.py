"""``szp``: error-bounded, an absolute bound that every value keeps."""

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
#: Of a complex number's error, what each part may have; a little less, for what is rounded up later.
_PART = math.sqrt(0.5) * (1 - 2.0**-50)


class SZP(Codec):
    """Error-bounded quantisation, differences and a fixed bit length per block of 32 values.

    Parameters
    ----------
    abs : float, optional
        Largest absolute error of any value, from 2**-1022 to 2**1020; of complex numbers ``|x - x'|``.
    rel : float, optional
        The same as a fraction of each array's range of values, max - min over what is finite, real and
        imaginary parts alike. At most one of the two is given; the default is ``rel=1e-3``.

    Raises
    ------
    ValueError
        For a bound that is not positive and finite or outside of the limits, or for both of them.

    Notes
    -----
    Blocks with values that are not finite, or too large to keep the bound, go out unchanged: the bound
    holds for every finite value, and the bits of the others survive. Complex numbers are pairs of real
    ones, of which each keeps the bound over the square root of 2. ``csrc/szp.h`` gives the byte layout, and
    the error of sums.

    The scheme is that of Huang et al., "cuSZp: An Ultra-Fast GPU Error-Bounded Lossy Compression
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
        # The encoder fills in the absolute bound where only the relative one is known.
        if self.abs is not None:
            return (_bits(self.abs), 0)
        return (0, _bits(self.rel))  # type: ignore[arg-type]

    def of_parts(self) -> SZP:
        """Get the codec of the parts of complex numbers, which are to keep this one's bound."""
        made = copy.copy(self)  # whose bound may be below the limits
        made.abs, made.rel = (one if one is None else one * _PART for one in (self.abs, self.rel))
        return made

    @property
    def can_add(self) -> bool:
        """Whether frames can be summed without decoding: not with ``rel``, a bound of each chunk's own."""
        return self.abs is not None and super().can_add


def _bits(value: float) -> int:
    return struct.unpack("<Q", struct.pack("<d", value))[0]
