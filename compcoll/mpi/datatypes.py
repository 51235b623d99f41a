"""MPI's datatypes seen as what they consist of, and packed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from mpi4py import MPI

from compcoll.core import dtypes

__all__ = ["LACKS_FLOAT16", "basic_type", "moved_as", "mpi_type", "own_sum", "pack", "unpack"]

_OWN_BFLOAT16 = getattr(MPI, "BFLOAT16_T", MPI.DATATYPE_NULL)
_FLOAT16 = np.dtype(np.float16)
#: Whether MPI has no float16: Open MPI 4 reports an error for its arrays, or crashes.
LACKS_FLOAT16 = MPI.Datatype.fromcode(_FLOAT16.char).handle in (0, MPI.DATATYPE_NULL.handle)

_dtype_of_handle: dict[int, np.dtype | None] = {}


def basic_type(datatype: MPI.Datatype) -> tuple[np.dtype, int] | None:
    """The one type that a datatype consists of and how many real numbers, or integers, it has; or None."""
    dtype = _predefined(datatype) if datatype.is_predefined else _homogeneous(datatype)
    if dtype is None or dtype not in dtypes.CODES:
        return None
    return dtype, datatype.Get_size() // dtypes.real_dtype(dtype).itemsize


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


def pack(datatype: MPI.Datatype, n: int, offset: int, memory) -> np.ndarray:
    """The bytes of ``n`` entries that begin ``offset`` bytes behind the start of a buffer."""
    packed = np.empty(n * datatype.Get_size(), np.uint8)
    _as_one(datatype, n, offset, len(memory), lambda whole: whole.Pack(memory, packed, 0, MPI.COMM_SELF))
    return packed


def unpack(packed: np.ndarray, datatype: MPI.Datatype, n: int, offset: int, memory) -> None:
    """The reverse of `pack`; bytes between the entries stay as they are."""
    _as_one(datatype, n, offset, len(memory), lambda whole: whole.Unpack(packed, 0, memory, MPI.COMM_SELF))


def _as_one(datatype: MPI.Datatype, n: int, offset: int, extent: int, use: Callable) -> None:
    """Use ``n`` entries as a single one that spans the buffer: mpi4py counts by the buffer's length."""
    if not n or not extent:
        return
    entries = datatype.Create_hindexed([n], [offset])
    whole = entries.Create_resized(0, extent).Commit()
    try:
        use(whole)
    finally:
        whole.Free()
        entries.Free()


def _predefined(datatype: MPI.Datatype) -> np.dtype | None:
    handle = datatype.handle
    if handle not in _dtype_of_handle:
        _dtype_of_handle[handle] = _dtype(datatype)
    return _dtype_of_handle[handle]


def _dtype(datatype: MPI.Datatype) -> np.dtype | None:
    if datatype == MPI.DATATYPE_NULL:
        return None
    if datatype in (MPI.BYTE, MPI.CHAR):
        return np.dtype(np.uint8)
    if datatype == _OWN_BFLOAT16:
        return dtypes.BFLOAT16
    try:
        return np.dtype(datatype.tocode())
    except (TypeError, ValueError, KeyError):
        return None


def _homogeneous(datatype: MPI.Datatype) -> np.dtype | None:
    """The basic type of a derived datatype; None where it has several."""
    found = set()
    for part in datatype.Get_contents()[-1]:
        if part.is_predefined:
            found.add(_predefined(part))
        else:  # a handle of our own, which nobody else frees
            found.add(_homogeneous(part))
            part.Free()
    return found.pop() if len(found) == 1 else None
