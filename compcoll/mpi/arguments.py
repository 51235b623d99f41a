"""The forms that mpi4py allows for a buffer argument: which memory, how much of it, of which datatype."""

from __future__ import annotations

from contextlib import suppress
from operator import index
from typing import Any

import numpy as np
from mpi4py import MPI

from compcoll.devices import arrays
from compcoll.devices.memory import DeviceArray
from compcoll.devices.wrapping import on_device
from compcoll.mpi.datatypes import mpi_type

__all__ = [
    "LeftToMPI",
    "entries_of",
    "is_type",
    "memory_of",
    "shape_of",
    "unpack_form",
]


class LeftToMPI(Exception):
    """mpi4py says best what is wrong with this argument."""


def is_type(x: Any) -> bool:
    """Whether a part of an argument says a datatype."""
    return isinstance(x, (MPI.Datatype, str))


def unpack_form(spec: Any) -> tuple[Any, ...]:
    """(buffer, count, displacement, datatype), None for what is not given."""
    if not isinstance(spec, (list, tuple)):
        return spec, None, None, None
    if len(spec) == 4:
        return tuple(spec)
    if len(spec) not in (2, 3):
        raise LeftToMPI
    buffer, second, datatype = (*spec, None)[:3]
    if len(spec) == 2 and is_type(second):
        return buffer, None, None, second
    if isinstance(second, (tuple, list)):
        count, displ = second
        return buffer, count, displ, datatype
    return buffer, second, None, datatype


def memory_of(buffer: Any, device: bool = False) -> tuple[np.ndarray | DeviceArray, MPI.Datatype | None]:
    """The bytes behind a buffer, in the order of memory, and the datatype of its elements."""
    if arrays.is_torch(buffer):
        arrays.check_tensor(buffer)
    if arrays.is_cuda(buffer):
        found = on_device(buffer) if device else None
        if found is None:
            raise LeftToMPI
        return found.view(np.uint8), mpi_type(found.dtype)
    if arrays.is_described(buffer):
        dtype = arrays.described_type(buffer)
        known = mpi_type(dtype) if dtype is not None else None
        raw: Any = MPI.buffer(buffer)
        return np.frombuffer(raw, np.uint8), known or MPI.BYTE  # as mpi4py has it
    view = arrays.host_view(buffer)
    if not (view.flags.c_contiguous or view.flags.f_contiguous):
        raise LeftToMPI
    return view.ravel(order="K").view(np.uint8), mpi_type(view.dtype) or _coded(buffer)


def shape_of(buffer: Any, itemsize: int) -> tuple[int, ...]:
    """The dimensions of an array of the host in elements of so many bytes, in the order of memory.

    Empty where it has fewer than two, and for what is no array, or of smaller elements.
    """
    if not (isinstance(buffer, np.ndarray) or arrays.is_torch(buffer)):
        return ()
    view = arrays.host_view(buffer)
    parts, rest = divmod(view.itemsize, itemsize)
    if view.ndim < 2 or not parts or rest:
        return ()
    shape = view.shape if view.flags.c_contiguous else view.shape[::-1]
    return (*shape[:-1], shape[-1] * parts)


def _coded(buffer: Any) -> MPI.Datatype | None:
    """The datatype that mpi4py has for the format of a buffer, such as characters; None without one."""
    with suppress(TypeError, ValueError, BufferError, KeyError):
        return MPI.Datatype.fromcode((memoryview(buffer).format or "").removeprefix("<"))
    return None


def entries_of(count: Any, displ: Any, nbytes: int, extent: int) -> tuple[int, int]:
    """Entries and displacement of a block; ``nbytes`` and ``extent`` in bytes."""
    start = 0 if displ is None else index(displ)
    if start < 0 or (start > 0 and not 0 < start * extent <= nbytes):
        raise LeftToMPI
    if count is not None:
        return index(count), start
    rest = nbytes - start * extent
    if rest and (extent <= 0 or rest % extent):
        raise LeftToMPI
    return rest // extent if rest else 0, start
