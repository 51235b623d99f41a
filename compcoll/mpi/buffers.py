"""mpi4py's buffer arguments, parsed once for all collectives.

A `Message` is what one argument says: memory, counts, displacements and a datatype that consists of one
basic type. What cannot be such a message is left to mpi4py, with its own semantics and exceptions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any, TypeAlias

import numpy as np
from mpi4py import MPI

from compcoll.core import dtypes
from compcoll.devices import arrays
from compcoll.devices.memory import DeviceArray
from compcoll.engine.layout import RUN, StridedBlock
from compcoll.mpi.arguments import (
    LeftToMPI,
    is_type,
    memory_of,
    shape_of,
    simple_layout,
    unpack_form,
    vector_layout,
)
from compcoll.mpi.datatypes import LACKS_FLOAT16, Entry, entry_of, moved_as

#: A block: an array of the host or a device, or what stands for one.
Block: TypeAlias = Any

__all__ = ["Block", "Message", "apart", "in_place", "known_to_mpi", "on_gpu", "parse", "unknown_type"]


class Message:
    """A parsed buffer argument: ``blocks`` of elements of one real type.

    Attributes
    ----------
    dtype, element : numpy.dtype
        The basic type, in `dtype` the real one for complex types.
    counts : list of int
        Elements of ``dtype`` in each block.
    dims : tuple of int
        Of the array that it lies in, in elements of ``dtype``, where that has two or more.
    """

    def __init__(
        self,
        buffer: Any,
        datatype: MPI.Datatype,
        entry: Entry,
        entries: list[int],
        displs: list[int],
        origin: DeviceArray | None = None,
        unit: int | None = None,
    ):
        assert entry.element is not None
        self.element, self.dtype = entry.element, dtypes.real_dtype(entry.element)
        self.counts = [n * entry.n for n in entries]
        self._buffer, self._datatype, self._entry, self._origin = buffer, datatype, entry, origin
        self._entries, self._displs = entries, displs
        self._unit = entry.extent if unit is None else unit  # bytes of a displacement of 1
        self.dims: tuple[int, ...] = ()
        #: Whether blocks are arrays as they lie there, of a predefined datatype.
        self.is_plain = entry.is_basic
        self._spans = [self._span(n, displ) for n, displ in zip(entries, displs, strict=True)]

    @property
    def device(self) -> Any:
        """The device of the memory; None for the host."""
        return self._buffer.device if isinstance(self._buffer, DeviceArray) else None

    @property
    def nbytes(self) -> int:
        """Bytes of the largest block."""
        return max(self.counts, default=0) * self.dtype.itemsize

    @property
    def is_read_only(self) -> bool:
        """Whether it may only be read."""
        return isinstance(self._buffer, np.ndarray) and not self._buffer.flags.writeable

    def check_writable(self) -> None:
        """BufferError where it may only be read."""
        if self.is_read_only:
            raise BufferError("the values of others would be written to a read-only buffer")

    def begin(self, i: int) -> int | None:
        """The address of block i; None where that is empty."""
        first, end = self._spans[i]
        if first == end:
            return None
        if self._buffer is MPI.BOTTOM:
            return first
        host = isinstance(self._buffer, np.ndarray)
        address: int = self._buffer.ctypes.data if host else self._buffer.address
        return first + address

    def begin_in_argument(self, i: int) -> int | None:
        """The byte of the host's memory where block i begins; None where it does not lie there as it is."""
        offset, layout = self._entry.piece_of(self._entries[i])
        if layout.kind != RUN or not isinstance(self._buffer, np.ndarray) or self._origin is not None:
            return None
        return self._displs[i] * self._unit + offset if layout.nbytes else 0

    @property
    def entries(self) -> int:
        """Entries of the first block, in units of its datatype."""
        return self._entries[0]

    @property
    def summable(self) -> bool:
        """Whether MPI adds elements of this datatype."""
        return self.is_plain and self._datatype not in (MPI.BYTE, MPI.CHAR, MPI.TWOINT)

    def shape(self, i: int) -> tuple[int, ...] | None:
        """The shape of block i, by its datatype or as whole slices of an array; None where it has none."""
        n, begin = self.counts[i], self._spans[i][0] // self.dtype.itemsize
        if not n:
            return None
        if not self.is_plain:
            own = self._entry.shape_of(self._entries[i]) or ()
            parts = self.element.itemsize // self.dtype.itemsize
            return (*own[:-1], own[-1] * parts) if len(own) > 1 else None
        for k in range(1, len(self.dims)):
            inner = self.dims[k:]
            slice_ = prod(inner)
            if slice_ and n % slice_ == 0 and begin % slice_ == 0:
                return n // slice_, *inner
        return None

    def source(self, i: int) -> Block:
        """Block i, to be read."""
        offset, layout = self._entry.piece_of(self._entries[i])
        nbytes, origin = layout.nbytes, self._displs[i] * self._unit + offset
        if not nbytes:
            return np.empty(0, self.dtype)
        if layout.kind == RUN:
            return self._bytes(origin, nbytes).view(self.dtype)
        if self._buffer is not MPI.BOTTOM:
            origin += self._buffer.ctypes.data
        return StridedBlock(layout, origin, self.dtype, self._buffer)

    def target(self, i: int) -> Block:
        """Block i, to be written."""
        self.check_writable()
        return self.source(i)

    def sources(self) -> list[Block]:
        """All blocks, to be read."""
        return [self.source(i) for i in range(len(self.counts))]

    def targets(self) -> list[Block]:
        """All blocks, to be written."""
        return [self.target(i) for i in range(len(self.counts))]

    def finish(self) -> None:
        """All blocks are written: where MPI knows the host's memory alone, give the device what is there."""
        if self._origin is not None:
            with self._origin.device.queue() as queue:
                queue.to_device(self._origin.address, self._buffer)

    def masked(self, keep: Sequence[bool]) -> list[Any]:
        """The argument in mpi4py's form, with the counts of the other blocks set to 0."""
        counts = [n if k else 0 for n, k in zip(self._entries, keep, strict=True)]
        if not any(counts):  # no address of a device, and nothing to copy from there
            return [np.empty(0, np.uint8), counts, [0] * len(counts), self._datatype]
        return [self._buffer, counts, self._displs, self._datatype]

    def _bytes(self, first: int, nbytes: int) -> Any:
        """Memory of the buffer."""
        if self._buffer is MPI.BOTTOM:
            memory: Any = MPI.buffer.fromaddress(first, nbytes)
            return np.frombuffer(memory, np.uint8)
        return self._buffer[first : first + nbytes]

    def _span(self, n: int, displ: int) -> tuple[int, int]:
        """First and last byte of ``n`` entries; ValueError where the memory ends before."""
        if n < 0:
            raise ValueError(f"count {n} is negative")
        if n == 0:
            return 0, 0
        entry = self._entry
        first = displ * self._unit + min((n - 1) * entry.extent, 0) + entry.lower
        end = displ * self._unit + max((n - 1) * entry.extent, 0) + entry.lower + entry.length
        if self._buffer is not MPI.BOTTOM and (first < 0 or end > self._buffer.size):
            raise ValueError(
                f"count {n} at displacement {displ} of {self._datatype.Get_name() or 'a derived datatype'} "
                f"needs bytes {first} to {end}, and the buffer has {self._buffer.size}"
            )
        return first, end


def on_gpu(spec: Any) -> bool:
    """Whether a buffer argument is, or begins with, memory of a GPU."""
    first = spec[0] if isinstance(spec, (list, tuple)) and spec else spec
    return type(first) not in _HOST_TYPES and arrays.is_cuda(first)


#: Arguments that most calls have: made to be quick.
_HOST_TYPES = frozenset((np.ndarray, int, type(None), MPI.Op, MPI.Status, type(MPI.IN_PLACE)))


def in_place(spec: Any) -> bool:
    """Whether mpi4py takes an argument for `MPI.IN_PLACE`."""
    return spec is None or spec is MPI.IN_PLACE


def apart(one: Message, i: int, other: Message, j: int) -> None:
    """MPI's error where two blocks begin at the same address, and are not one for `MPI.IN_PLACE`."""
    if one is not other and one.begin(i) is not None and one.begin(i) == other.begin(j):
        error = MPI.Exception(MPI.ERR_BUFFER)
        error.add_note("send and receive buffer are the same memory: give MPI.IN_PLACE")
        raise error


def parse(
    spec: Any,
    blocks: int | None = None,
    *,
    vector: bool = False,
    device: bool = False,
    truncate: bool = False,
    strict: bool = False,
) -> Message | None:
    """Parse a buffer argument.

    Parameters
    ----------
    spec
        Any of mpi4py's forms.
    blocks : int, optional
        Number of ranks, where the argument holds a block for each.
    vector : bool
        Whether counts and displacements are given per block.
    device : bool
        Whether memory of a GPU will do.
    truncate : bool
        Whether a count beyond the memory means what is there.
    strict : bool
        Whether to tell what mpi4py refuses from what it serves.

    Returns
    -------
    Message or None
        None where mpi4py has to deal with it: no memory, or a datatype of several basic types or of
        one that frames do not hold.

    Raises
    ------
    LeftToMPI
        If ``strict``, where mpi4py will find something wrong with it.
    ValueError
        Where counts and displacements go past the memory, or are negative.
    """
    unknown = None
    try:
        buffer, count, displ, datatype = unpack_form(spec, vector)
        absolute = buffer is None or buffer is MPI.BOTTOM
        if absolute:
            # For mpi4py, None stands for MPI.BOTTOM in vector calls.
            buffer, own = (MPI.BOTTOM if buffer is MPI.BOTTOM or vector else np.empty(0, np.uint8)), None
        else:
            unknown = unknown_type(buffer) if datatype is None else None
            buffer, own = memory_of(buffer, device)
        datatype = own if datatype is None else datatype
        if isinstance(datatype, str):
            datatype = MPI.Datatype.fromcode(datatype)
        if datatype is None:
            raise LeftToMPI
        entry = entry_of(datatype)
        if unknown is not None:  # whatever MPI takes it for
            entry = entry.of(unknown)
        extent = entry.extent
        layout: Callable[..., tuple[list[int], list[int]]] = vector_layout if vector else simple_layout
        nbytes = 0 if buffer is MPI.BOTTOM else buffer.size
        entries, displs = layout(count, displ, blocks, nbytes, extent)
        if absolute and not any(entries):
            buffer = np.empty(0, np.uint8)
        if truncate and buffer is not MPI.BOTTOM and extent > 0:
            room = nbytes - displs[0] * extent - entry.lower
            entries = [min(entries[0], max(0, (room - entry.length) // extent + 1))]
    except _NOT_OURS:
        if strict:
            raise LeftToMPI from None
        return None
    if entry.element is None:
        return None
    message = Message(buffer, datatype, entry, entries, displs)
    if message.device is None:
        first = spec[0] if isinstance(spec, (list, tuple)) else spec
        message.dims = shape_of(first, message.dtype.itemsize)
    if message.device is None or message.is_plain:
        return message
    # Non-contiguous blocks are packed and unpacked in host memory.
    return Message(np.asarray(buffer), datatype, entry, entries, displs, buffer)


#: mpi4py raises the like, or says what it does with the argument.
_NOT_OURS = (
    ArithmeticError,
    AttributeError,
    BufferError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
    LeftToMPI,
)


def unknown_type(spec: Any) -> np.dtype | None:
    """The elements' type where mpi4py or MPI does not know it, of an array or a list that begins with one."""
    first = spec[0] if isinstance(spec, (list, tuple)) and spec else spec
    dtype = getattr(first, "dtype", "")
    return _unknown(dtype) if isinstance(dtype, np.dtype) else _unknown_by_name(str(dtype))


@cache
def _unknown(dtype: np.dtype) -> np.dtype | None:
    return _unknown_by_name(str(dtype))


def _unknown_by_name(name: str) -> np.dtype | None:
    if "bfloat16" in name:
        return dtypes.BFLOAT16
    return np.dtype(np.float16) if LACKS_FLOAT16 and name.endswith("float16") else None


def known_to_mpi(spec: Any) -> list[Any]:
    """A buffer argument of an `unknown_type` in a form that mpi4py and MPI take."""
    dtype = unknown_type(spec)
    assert dtype is not None
    if isinstance(spec, (list, tuple)):
        first, *rest = spec
        memory, _ = memory_of(first)
        return [memory, *rest] if any(is_type(x) for x in rest) else [memory, *rest, moved_as(dtype)]
    return [memory_of(spec)[0], moved_as(dtype)]
