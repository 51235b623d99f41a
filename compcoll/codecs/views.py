"""Views of arrays with more dtypes and dimensions than frames have, as arrays that frames can hold."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from compcoll.core import dtypes

__all__ = ["as_frame_array", "is_supported"]

#: Kinds of dtype that are coded as integers of the same size: bool, timedelta64, datetime64.
_INTEGERS = {"b": "u", "m": "i", "M": "i"}


def is_supported(dtype: np.dtype) -> bool:
    """True if arrays of a dtype can be coded, in native byte order."""
    return dtype.kind in _INTEGERS or dtype in dtypes.CODES


def as_frame_array(array: Any) -> Any:
    """View a contiguous array with a dtype that frames hold and at most 3 dimensions."""
    if array.dtype.kind in _INTEGERS:
        array = array.view(f"{_INTEGERS[array.dtype.kind]}{array.dtype.itemsize}")
    return array if array.ndim <= 3 else array.reshape(math.prod(array.shape[:-2]), *array.shape[-2:])
