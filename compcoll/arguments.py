"""The forms that mpi4py allows for a buffer argument: which memory, how much of it, of which datatype."""

from __future__ import annotations

from itertools import accumulate
from operator import index

import numpy as np
from mpi4py import MPI

from compcoll import arrays
from compcoll.datatypes import mpi_type
from compcoll.devices.memory import DeviceArray
from compcoll.devices.wrapping import on_device

__all__ = [
    "LeftToMPI", "datatype_of", "is_type", "memory_of", "simple_layout", "unpack_form", "vector_layout",
    "without_buffer",
]  # fmt: skip


class LeftToMPI(Exception):
    """mpi4py says best what is wrong with this argument."""


def is_type(x) -> bool:
    """Whether a part of an argument says a datatype."""
    return isinstance(x, (MPI.Datatype, str))


def unpack_form(spec, vector: bool) -> tuple:
    """(buffer, count or counts, displacement or displacements, datatype), None for what is not given."""
    if not isinstance(spec, (list, tuple)):
        return spec, None, None, None
    if len(spec) == 4:
        return tuple(spec)
    if len(spec) not in (2, 3):
        raise LeftToMPI
    buffer, second, datatype = (*spec, None)[:3]
    if len(spec) == 2 and is_type(second):
        return buffer, None, None, second
    if isinstance(second, tuple if vector else (tuple, list)):
        count, displ = second
        return buffer, count, displ, datatype
    return buffer, second, None, datatype


def memory_of(buffer, device: bool = False) -> tuple[np.ndarray | DeviceArray, MPI.Datatype | None]:
    """The bytes behind a buffer, in the order of memory, and the datatype of its elements."""
    if device and arrays.is_cuda(buffer):
        found = on_device(buffer)
        if found is None:
            raise LeftToMPI
        return found.view(np.uint8), mpi_type(found.dtype)
    if not isinstance(buffer, np.ndarray) and not arrays.is_torch(buffer) and not arrays.is_cuda(buffer):
        buffer = memoryview(buffer)
    view = arrays.host_view(buffer)
    if not (view.flags.c_contiguous or view.flags.f_contiguous):
        raise LeftToMPI
    return view.ravel(order="K").view(np.uint8), mpi_type(view.dtype)


def without_buffer(count, displ, datatype, blocks: int | None) -> tuple:
    """Memory and datatype of an argument without a buffer: nothing, or absolute addresses."""
    if datatype is None or count is None:
        raise LeftToMPI
    datatype = datatype_of(datatype)
    if not any(_listed(count, blocks or 1)):
        return np.empty(0, np.uint8), datatype
    if datatype.is_predefined or displ is not None:
        raise LeftToMPI
    return MPI.BOTTOM, datatype


def datatype_of(datatype) -> MPI.Datatype:
    """A datatype given as itself or by mpi4py's code for it."""
    return MPI.Datatype.fromcode(datatype) if isinstance(datatype, str) else datatype


def simple_layout(count, displ, blocks: int | None, nbytes: int, extent: int) -> tuple[list[int], list[int]]:
    """Entries and displacements of each block, where all have as many; ``nbytes`` and ``extent`` in bytes."""
    start = 0 if displ is None else index(displ)
    parts = 1 if blocks is None else blocks
    if count is None:
        entries, rest = divmod(nbytes - start * extent, extent) if extent > 0 else (0, 1)
        if rest or start < 0 or entries < 0 or entries % parts:
            raise LeftToMPI
        count = entries // parts
    n = index(count)
    return [n] * parts, [start + i * n for i in range(parts)]


def vector_layout(counts, displs, blocks: int, nbytes: int, extent: int) -> tuple[list[int], list[int]]:
    """Entries and displacements of each block; what is not given follows from mpi4py's rules."""
    if counts is None:
        entries, rest = divmod(nbytes, extent) if extent > 0 else (0, 1)
        if rest:
            raise LeftToMPI
        n = [entries // blocks + (entries % blocks > i) for i in range(blocks)]
    else:
        n = _listed(counts, blocks)
    if displs is None:
        return n, [0, *accumulate(n)][:blocks]
    if isinstance(displs, (list, tuple, np.ndarray)):
        return n, _listed(displs, blocks)
    return n, [index(displs) * i for i in range(blocks)]


def _listed(values, blocks: int) -> list[int]:
    if not isinstance(values, (list, tuple, np.ndarray)):
        return [index(values)] * blocks
    if len(values) != blocks:
        raise LeftToMPI
    return [index(v) for v in values]
