"""Upper limits of the rounding errors of a sum, from its values.

Let u be the unit roundoff of a type (2^-24 for float32) and fl(x) the nearest value to x. Then |fl(x) - x| is
at most u |fl(x)|, and where fl(x) is below the normal range at most half of the smallest number; an addition
is exact there (Higham, "Accuracy and Stability of Numerical Algorithms", 2002, sections 2.1 and 2.2). So each
addition to an accumulator with the values s adds at most u max |s| to the error that the two terms have
brought, and one rounding of the result to a narrower type at most u max |result| plus half of that type's
smallest number. What is off by u max |s| depends on the sums as they really were: no cancellation makes it
wrong, and the terms need not be known.

Where a value is not finite nothing is known of the others: a sum may
have overflowed.
"""

from __future__ import annotations

import math

import numpy as np

from compcoll.core import _cpu, dtypes

__all__ = ["largest", "of_addition", "of_result", "safe"]

#: Unit roundoff, and half of the smallest positive number.
_UNITS = {
    np.dtype(np.float16): (2.0**-11, 2.0**-25),
    dtypes.BFLOAT16: (2.0**-8, 2.0**-134),
    np.dtype(np.float32): (2.0**-24, 2.0**-150),
    np.dtype(np.float64): (2.0**-53, 2.0**-1074),
}


def largest(values: np.ndarray) -> float:
    """The largest magnitude in a contiguous array; not finite where any value is not, 0 for integers."""
    if values.dtype not in dtypes.FLOATS:
        return 0.0
    return _cpu.largest(dtypes.code_of(values.dtype), values.reshape(-1).view(np.uint8), values.size)


def of_addition(dtype: np.dtype, most: float) -> float:
    """The error of additions whose sums have at most this magnitude."""
    return _scaled(dtypes.real_dtype(dtype), most, 0.0)


def of_result(dtype: np.dtype, most: float) -> float:
    """The error of rounding to values of at most this magnitude."""
    dtype = dtypes.real_dtype(dtype)
    return _scaled(dtype, most, _UNITS[dtype][1])


def safe(bound: float) -> float:
    """A bound that was added up from many, with room for the roundings of that."""
    return bound * (1 + 2.0**-40)


def _scaled(dtype: np.dtype, most: float, tiny: float) -> float:
    if dtype not in _UNITS or not most:
        return tiny if dtype in _UNITS and not most else 0.0
    if not math.isfinite(most):
        return math.nan
    return _UNITS[dtype][0] * most + tiny
