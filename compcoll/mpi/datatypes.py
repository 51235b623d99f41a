"""MPI's predefined datatypes and NumPy's."""

from __future__ import annotations

from functools import cache

import numpy as np
from mpi4py import MPI

from compcoll.core import dtypes

__all__ = ["LACKS_FLOAT16", "moved_as", "mpi_type", "own_sum", "predefined_type"]

_OWN_BFLOAT16 = getattr(MPI, "BFLOAT16_T", MPI.DATATYPE_NULL)
_FLOAT16 = np.dtype(np.float16)
#: Whether MPI has no float16: Open MPI 4 reports an error for its arrays, or crashes.
LACKS_FLOAT16 = MPI.Datatype.fromcode(_FLOAT16.char).handle in (0, MPI.DATATYPE_NULL.handle)

_dtype_of_handle: dict[int, np.dtype | None] = {}


def predefined_type(datatype: MPI.Datatype) -> np.dtype | None:
    """The type of a predefined datatype's values, of a pair of integers that of each; None for others."""
    handle = datatype.handle
    if handle not in _dtype_of_handle:
        _dtype_of_handle[handle] = _dtype(datatype)
    return _dtype_of_handle[handle]


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
    """What MPI moves a 16-bit float as that it has no type of its own for."""
    known = _OWN_BFLOAT16 if dtype == dtypes.BFLOAT16 else MPI.DATATYPE_NULL
    return known if known != MPI.DATATYPE_NULL else MPI.UINT16_T


@cache
def own_sum(dtype: np.dtype) -> MPI.Op:
    """`MPI.SUM` for what a type is `moved_as`."""
    if moved_as(dtype) != MPI.UINT16_T:
        return MPI.SUM

    def add(theirs, ours, datatype: MPI.Datatype) -> None:
        values = np.frombuffer(ours, dtype)
        np.add(values, np.frombuffer(theirs, dtype), out=values)

    return MPI.Op.Create(add, commute=True)


def _dtype(datatype: MPI.Datatype) -> np.dtype | None:
    if datatype == MPI.DATATYPE_NULL:
        return None
    if datatype in (MPI.BYTE, MPI.CHAR):
        return np.dtype(np.uint8)
    if datatype == _OWN_BFLOAT16:
        return dtypes.BFLOAT16
    if datatype == MPI.TWOINT:
        return np.dtype(np.intc)
    try:
        return np.dtype(datatype.tocode())
    except (TypeError, ValueError, KeyError):
        return None
