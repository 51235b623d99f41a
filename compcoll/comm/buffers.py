"""Buffer specifications beyond mpi4py's: with an array's dimensions, and for floats that mpi4py lacks.

``comm.Bcast(compcoll.shaped(field))`` gives the dimensions of an array to a codec such as zfp.
``comm.Allreduce(MPI.IN_PLACE, compcoll.typed(gradient))`` takes an array of ml_dtypes, or a tensor, of 16-bit
or 8-bit floats. `BFLOAT16`, `FLOAT16`, `FLOAT8_E4M3` and `FLOAT8_E5M2` are their datatypes, for other forms
of buffers: MPI's own type if it has one, such as ``MPI.BFLOAT16_T`` of MPI 5, otherwise integers of equal
size, which `MPI.SUM` adds up as floats.
"""

from __future__ import annotations

from functools import cache
from typing import Any
from weakref import WeakValueDictionary

import ml_dtypes
import numpy as np
from mpi4py import MPI

from compcoll.core import dtypes
from compcoll.devices import arrays
from compcoll.engine import _engine

__all__ = ["BFLOAT16", "FLOAT8_E4M3", "FLOAT8_E5M2", "FLOAT16", "datatype_of", "shaped", "typed"]


def _sum_of(dtype: np.dtype) -> MPI.Op:
    """Return the `MPI.SUM` of integers that hold floats of a type."""
    if dtypes.supported(dtype):
        return _engine.sum_of_halves(dtype)

    def add(theirs: Any, ours: Any, datatype: MPI.Datatype) -> None:
        values = np.frombuffer(ours, dtype)
        np.add(values, np.frombuffer(theirs, dtype), out=values)

    return MPI.Op.Create(add, commute=True)


def _make(dtype: np.dtype, name: str, known: MPI.Datatype = MPI.DATATYPE_NULL) -> MPI.Datatype:
    """Make a datatype of floats: MPI's own, or a duplicate of one of integers that stands for them."""
    if known != MPI.DATATYPE_NULL and known.handle:
        return known
    made = (MPI.UINT8_T if dtype.itemsize == 1 else MPI.UINT16_T).Dup()
    made.Set_name(name)
    held = dtype if dtypes.supported(dtype) else np.dtype(np.uint8)  # frames hold 8-bit floats as bytes
    _engine.override_element_type(made, held, _sum_of(dtype), summable=held is dtype)
    return made


if not MPI.Is_initialized():
    MPI.COMM_WORLD.Get_rank()  # begins MPI after an import of compcoll.torch, or says what will
_FLOAT16 = np.dtype(np.float16)
_DTYPES = {
    "BFLOAT16": dtypes.BFLOAT16,
    "FLOAT16": _FLOAT16,
    "FLOAT8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "FLOAT8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
}
BFLOAT16 = _make(dtypes.BFLOAT16, "BFLOAT16", getattr(MPI, "BFLOAT16_T", MPI.DATATYPE_NULL))
FLOAT16 = _make(_FLOAT16, "FLOAT16", MPI.Datatype.fromcode(_FLOAT16.char))
FLOAT8_E4M3 = _make(_DTYPES["FLOAT8_E4M3"], "FLOAT8_E4M3")
FLOAT8_E5M2 = _make(_DTYPES["FLOAT8_E5M2"], "FLOAT8_E5M2")
_OWN = {dtype: globals()[name] for name, dtype in _DTYPES.items()}


@cache
def datatype_of(dtype: Any) -> MPI.Datatype:
    """Return the datatype of an array's elements.

    Raises
    ------
    TypeError
        For a dtype without one.
    """
    dtype = np.dtype(dtype)
    if dtype in _OWN:
        return _OWN[dtype]
    try:
        if dtype.isbuiltin != 1:  # whose letter may be that of another type
            raise ValueError
        return MPI.Datatype.fromcode(dtype.char)
    except (KeyError, ValueError):
        raise TypeError(f"MPI has no datatype for elements of {dtype}") from None


def typed(array: Any) -> list[Any]:
    """Buffer specification of an array, or a tensor, of any type that MPI or compcoll has.

    Parameters
    ----------
    array : array or torch.Tensor
        Contiguous, of any shape, in the memory of the host or a GPU. Its dtype is one of NumPy's, or
        bfloat16, float8_e4m3fn or float8_e5m2 of ml_dtypes or torch.

    Returns
    -------
    list
        ``[memory, datatype]``

    Raises
    ------
    TypeError
        For elements without a datatype.
    """
    dtype = _dtype_of(array)
    return [_as_known(array, dtype), datatype_of(dtype)]


def shaped(array: Any) -> list[Any]:
    """Buffer specification that tells codecs the dimensions of an array.

    The first dimension counts entries: collectives cut the array along it, so that each block of ``Alltoall``
    or ``Scatter`` has all of the other dimensions. Sums take no shapes; give them `typed` or the bare array.

    Parameters
    ----------
    array : array or torch.Tensor
        Contiguous, of at least one dimension; in Fortran order the last dimension counts entries.

    Returns
    -------
    list
        ``[memory, datatype]``

    Raises
    ------
    TypeError
        For elements without a datatype.
    ValueError
        For an array without a dimension.
    """
    dtype = _dtype_of(array)
    shape = tuple(int(n) for n in array.shape)
    if not arrays.is_torch(array) and array.flags.f_contiguous and not array.flags.c_contiguous:
        shape = shape[::-1]
    if not shape:
        raise ValueError(f"an array of shape {shape} has no dimension along which it could be cut")
    datatype = datatype_of(dtype)
    if len(shape) > 1:
        datatype = _nested(shape[1:], datatype)
    return [_as_known(array, dtype), datatype]


class _Rows(MPI.Datatype):
    """Datatype that is freed with the last specification that uses it."""

    def __del__(self, _is_over: Any = MPI.Is_finalized, _null: Any = MPI.DATATYPE_NULL) -> None:
        if not _is_over() and self != _null:
            self.Free()


_known: WeakValueDictionary[tuple[tuple[int, ...], int], _Rows] = WeakValueDictionary()


def _nested(shape: tuple[int, ...], element: MPI.Datatype) -> _Rows:
    """Return a contiguous datatype of an array with this shape."""
    key = shape, _engine.handle(element)
    found = _known.get(key)
    if found is not None:
        return found
    made = [element]
    for n in reversed(shape):
        made.append(made[-1].Create_contiguous(n))
    for inner in made[1:-1]:
        inner.Free()
    rows = _known[key] = _Rows(made[-1].Commit())
    return rows


def _dtype_of(array: Any) -> np.dtype:
    """Return the dtype of an array's elements, for a tensor NumPy's or ml_dtypes' equivalent."""
    if not hasattr(array, "dtype"):
        raise TypeError(f"an array or a tensor is needed, not {array!r:.50}, a {type(array).__name__}")
    if not arrays.is_torch(array):
        return np.dtype(array.dtype)
    name = str(array.dtype).removeprefix("torch.")
    try:
        return np.dtype(getattr(ml_dtypes, name, name))
    except TypeError:
        raise TypeError(f"MPI has no datatype for elements of {array.dtype}") from None


def _as_known(array: Any, dtype: np.dtype) -> Any:
    """View an array's memory with elements that mpi4py knows."""
    if dtype not in _OWN:
        return array
    if arrays.is_torch(array):
        import torch

        return array.view(torch.int16 if dtype.itemsize == 2 else torch.uint8)
    return array.view(np.uint16 if dtype.itemsize == 2 else np.uint8)
