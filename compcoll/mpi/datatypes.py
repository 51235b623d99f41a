"""MPI's datatypes of NumPy's types, and of those that it lacks."""

from __future__ import annotations

from functools import cache

import numpy as np
from mpi4py import MPI

from compcoll.core import dtypes

__all__ = ["LACKS_FLOAT16", "moved_as", "mpi_type"]

_OWN_BFLOAT16 = getattr(MPI, "BFLOAT16_T", MPI.DATATYPE_NULL)
_FLOAT16 = np.dtype(np.float16)
#: Whether MPI has no float16: Open MPI 4 reports an error for its arrays, or crashes.
LACKS_FLOAT16 = MPI.Datatype.fromcode(_FLOAT16.char).handle in (0, MPI.DATATYPE_NULL.handle)


@cache
def mpi_type(dtype: np.dtype) -> MPI.Datatype | None:
    """The datatype of an array's elements, or None."""
    if dtype == dtypes.BFLOAT16 or (LACKS_FLOAT16 and dtype == _FLOAT16):
        return moved_as(dtype)
    if not dtype.isnative or dtype.kind not in "biufc":  # mpi4py refuses dates, which it has a code for
        return None
    try:
        return MPI.Datatype.fromcode(dtype.char)
    except (KeyError, ValueError):
        return None


def moved_as(dtype: np.dtype) -> MPI.Datatype:
    """The datatype that moves a 16-bit float unknown to MPI."""
    known = _OWN_BFLOAT16 if dtype == dtypes.BFLOAT16 else MPI.DATATYPE_NULL
    return known if known != MPI.DATATYPE_NULL else MPI.UINT16_T
