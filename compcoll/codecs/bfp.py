"""``bfp``: block floating point with a predictor and a chosen number of bits per value."""

from __future__ import annotations

import numpy as np

from compcoll.codecs import options
from compcoll.codecs.base import Codec
from compcoll.core import dtypes

#: Most bits of a code (csrc/bfp.h), for float64 and for all other types.
MAX_BITS = {8: 52, 4: 24}
MAX_DIM = 32
#: Limits of ``rel``.
MIN_REL, MAX_REL = 2.0**-50, 0.5


class BFP(Codec):
    """Block floating point: 64 values share a step, and their codes or those of their differences are stored.

    A payload has about ``bits`` + 0.3 bits a value.

    Parameters
    ----------
    bits : int, optional
        Bits of a code, 2 to 52; more than 24 count as 24 except for float64 and complex128. The default is 8.
    rel : float, optional
        Largest absolute error relative to the largest magnitude among the 64 values of a block, from 2**-50
        to 1/2; the number of bits follows. An array is coded losslessly if it would need too many bits. Give
        at most one of ``bits`` and ``rel``.
    dim : int, optional
        Distance of the predicting value, 1 to 32 real numbers: the number of interleaved quantities. The
        default is 1, and 2 for complex types.
    rounding : {"nearest", "stochastic"}
        Stochastic rounding is unbiased: the mean of the rounded values is the value, up to floating-point
        rounding.
    seed : int
        From 0 to 2**64 - 1, for stochastic rounding; equal seeds and inputs give equal bytes.

    Raises
    ------
    ValueError
        For an option that is none of these, or for both ``bits`` and ``rel``.

    Notes
    -----
    The size of a payload depends only on dtype and number of values. An array is coded losslessly if it has
    values that are not finite, or magnitudes from 2**125 (float64: 2**509) on. No step is smaller than
    2**-126 (2**-511): errors of 2**-127 (2**-512) are possible for any magnitude of a block, and an array
    whose largest magnitude needs a smaller step is coded losslessly. Complex numbers are pairs of real ones,
    each of which keeps ``rel``. ``csrc/bfp.h`` gives the byte layout and the error bounds.

    References
    ----------
    Tian et al.: cuSZ, an efficient GPU-based error-bounded lossy compression framework for scientific data.
    PACT 2020.
    """

    name = "bfp"
    lossless = False
    dtypes = dtypes.FLOATS
    careful_speed = (2.5e9, 2.5e9)
    typical = ("bfp:bits=5", "bfp:bits=7", "bfp:bits=12")

    def __init__(
        self,
        bits: int | None = None,
        rel: float | None = None,
        dim: int | None = None,
        rounding: str = "nearest",
        seed: int = 0,
    ):
        if bits is not None and rel is not None:
            raise ValueError(f"bfp takes one of bits and rel, and both bits={bits} and rel={rel} are given")
        self.rounding, self.seed = options.rounding("bfp", rounding, seed)
        self.rel = None if rel is None else options.number("bfp", "rel", rel, MIN_REL, MAX_REL)
        self.bits = None
        if rel is None:
            self.bits = options.integer("bfp", "bits", 8 if bits is None else bits, 2, MAX_BITS[8])
        self.dim = None if dim is None else options.integer("bfp", "dim", dim, 1, MAX_DIM)

    def options(self) -> dict[str, object]:
        default = {"bits": None, "rel": None, "dim": None, "rounding": "nearest", "seed": 0}
        return {key: getattr(self, key) for key, value in default.items() if getattr(self, key) != value}

    def bits_of(self, dtype: np.dtype) -> int:
        """Bits of a code for an array of this dtype; more than the limit if ``rel`` cannot be kept."""
        most = MAX_BITS[max(dtypes.real_dtype(dtype).itemsize, 4)]
        if self.rel is None:
            return min(self.bits or 8, most)
        rel = self.rel
        return next((n for n in range(2, most + 1) if self._error(n, dtype) <= rel), most + 1)

    def _error(self, bits: int, dtype: np.dtype) -> float:
        """Largest error as a fraction of a block's largest magnitude (csrc/bfp.h)."""
        real = dtypes.real_dtype(dtype)
        wide = real.itemsize == 8
        step = (1 + 2.0 ** (-5 if wide else -7) + 2.0**-20) / (2 ** (bits - 1) - 1)  # rounded up
        error = step * (1 if self.rounding == "stochastic" else 0.5)
        own = 2.0 ** (-53 if wide else -24)
        error += (3.1 + error) * own
        if real == np.float16:  # below its normal range, rounding may double an error
            return 2 * error
        narrow = 2.0**-8 if real.itemsize == 2 else 0.0
        return error + min(error, (1 + error) * narrow * 1.02)

    def params(self, dtype: np.dtype, shape: tuple[int, ...]) -> tuple[int, int]:
        dim = self.dim or (2 if dtype.kind == "c" else 1)
        return (self.bits_of(dtype) | dim << 8 | options.ROUNDINGS.index(self.rounding) << 32, self.seed)

    def takes(self, dtype: np.dtype) -> bool:
        """True if it codes arrays of a dtype; false if no number of bits keeps ``rel``."""
        most = MAX_BITS[max(dtypes.real_dtype(dtype).itemsize, 4)]
        return super().takes(dtype) and self.bits_of(dtype) <= most
