"""mpi4py's buffer arguments of messages.

A `Message` is what one argument says: memory, count, displacement and a datatype that consists of one basic
type. What cannot be such a message is left to mpi4py, with its own semantics and exceptions.
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any, TypeAlias

import numpy as np
from mpi4py import MPI

from compcoll.core import dtypes
from compcoll.devices import arrays
from compcoll.devices.memory import DeviceArray
from compcoll.engine._engine import RUN, Entry, StridedBlock, entry_of
from compcoll.mpi.arguments import LeftToMPI, entries_of, is_type, memory_of, shape_of, unpack_form
from compcoll.mpi.datatypes import LACKS_FLOAT16, moved_as

#: A block: an array of the host or a device, or what stands for one.
Block: TypeAlias = Any

__all__ = ["Block", "Message", "known_to_mpi", "on_gpu", "parse", "unknown_type"]


class Message:
    """A parsed buffer argument: a block of elements of one real type.

    Attributes
    ----------
    dtype, element : numpy.dtype
        The basic type, in `dtype` the real one for complex types.
    count : int
        Elements of ``dtype``.
    dims : tuple of int
        Of the array that it lies in, in elements of ``dtype``, where that has two or more.
    """

    def __init__(
        self, buffer: Any, name: str, entry: Entry, n: int, displ: int, origin: DeviceArray | None = None
    ):
        self.element, self.dtype = entry.element, dtypes.real_dtype(entry.element)
        self.count = n * entry.n
        self._buffer, self._entry, self._n, self._origin = buffer, entry, n, origin
        self._displ = displ * entry.extent  # in bytes
        self.dims: tuple[int, ...] = ()
        #: Whether the block is an array as it lies there, of a predefined datatype.
        self.is_plain = entry.is_basic
        self._first = self._begin(name, displ)

    @property
    def device(self) -> Any:
        """The device of the memory; None for the host."""
        return self._buffer.device if isinstance(self._buffer, DeviceArray) else None

    @property
    def nbytes(self) -> int:
        """Bytes of the block."""
        return self.count * self.dtype.itemsize

    def shape(self) -> tuple[int, ...] | None:
        """The block's shape, by its datatype or as whole slices of an array; None where it has none."""
        n, begin = self.count, self._first // self.dtype.itemsize
        if not n:
            return None
        if not self.is_plain:
            own: tuple[int, ...] = self._entry.shape_of(self._n) or ()
            parts = self.element.itemsize // self.dtype.itemsize
            return (*own[:-1], own[-1] * parts) if len(own) > 1 else None
        for k in range(1, len(self.dims)):
            inner = self.dims[k:]
            slice_ = prod(inner)
            if slice_ and n % slice_ == 0 and begin % slice_ == 0:
                return n // slice_, *inner
        return None

    def source(self) -> Block:
        """The block, to be read."""
        offset, layout = self._entry.piece_of(self._n)
        nbytes, origin = layout.nbytes, self._displ + offset
        if not nbytes:
            return np.empty(0, self.dtype)
        if layout.kind == RUN:
            return self._bytes(origin, nbytes).view(self.dtype)
        if self._buffer is not MPI.BOTTOM:
            origin += self._buffer.ctypes.data
        return StridedBlock(layout, origin, self.dtype, self._buffer)

    def target(self) -> Block:
        """The block, to be written; BufferError where it may only be read."""
        if isinstance(self._buffer, np.ndarray) and not self._buffer.flags.writeable:
            raise BufferError("the values of others would be written to a read-only buffer")
        return self.source()

    def finish(self) -> None:
        """The block is written: where MPI knows the host's memory alone, give the device what is there."""
        if self._origin is not None:
            with self._origin.device.queue() as queue:
                queue.to_device(self._origin.address, self._buffer)

    def _bytes(self, first: int, nbytes: int) -> Any:
        """Memory of the buffer."""
        if self._buffer is MPI.BOTTOM:
            memory: Any = MPI.buffer.fromaddress(first, nbytes)
            return np.frombuffer(memory, np.uint8)
        return self._buffer[first : first + nbytes]

    def _begin(self, name: str, displ: int) -> int:
        """The first byte; ValueError where the memory ends before the last one."""
        n, entry = self._n, self._entry
        if n < 0:
            raise ValueError(f"count {n} is negative")
        if n == 0:
            return 0
        first = self._displ + min((n - 1) * entry.extent, 0) + entry.lower
        end = self._displ + max((n - 1) * entry.extent, 0) + entry.lower + entry.length
        if self._buffer is not MPI.BOTTOM and (first < 0 or end > self._buffer.size):
            raise ValueError(
                f"count {n} at displacement {displ} of {name or 'a derived datatype'} "
                f"needs bytes {first} to {end}, and the buffer has {self._buffer.size}"
            )
        return first


def on_gpu(spec: Any) -> bool:
    """Whether a buffer argument is, or begins with, memory of a GPU."""
    first = spec[0] if isinstance(spec, (list, tuple)) and spec else spec
    return type(first) not in _HOST_TYPES and arrays.is_cuda(first)


#: Arguments that most calls have: made to be quick.
_HOST_TYPES = frozenset((np.ndarray, int, type(None), MPI.Op, MPI.Status, type(MPI.IN_PLACE)))


def parse(spec: Any, *, device: bool = False, truncate: bool = False) -> Message | None:
    """Parse a buffer argument.

    Parameters
    ----------
    spec
        Any of mpi4py's forms.
    device : bool
        Whether memory of a GPU will do.
    truncate : bool
        Whether a count beyond the memory means what is there.

    Returns
    -------
    Message or None
        None where mpi4py has to deal with it: no memory, or a datatype of several basic types or of
        one that frames do not hold.

    Raises
    ------
    ValueError
        Where count and displacement go past the memory, or are negative.
    """
    unknown = None
    try:
        buffer, count, displ, datatype = unpack_form(spec)
        absolute = buffer is None or buffer is MPI.BOTTOM
        if absolute:
            buffer, own = MPI.BOTTOM if buffer is MPI.BOTTOM else np.empty(0, np.uint8), None
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
        nbytes = 0 if buffer is MPI.BOTTOM else buffer.size
        n, start = entries_of(count, displ, nbytes, entry.extent)
        if absolute and not n:
            buffer = np.empty(0, np.uint8)
        if truncate and buffer is not MPI.BOTTOM and entry.extent > 0:
            room = nbytes - start * entry.extent - entry.lower
            n = min(n, max(0, (room - entry.length) // entry.extent + 1))
    except _NOT_OURS:
        return None
    if entry.element is None:
        return None
    name = datatype.Get_name()
    message = Message(buffer, name, entry, n, start)
    if message.device is None:
        first = spec[0] if isinstance(spec, (list, tuple)) else spec
        message.dims = shape_of(first, message.dtype.itemsize)
    if message.device is None or message.is_plain:
        return message
    # What is not contiguous is packed and unpacked in host memory.
    return Message(np.asarray(buffer), name, entry, n, start, buffer)


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
