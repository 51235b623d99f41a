"""mpi4py's buffer arguments, parsed once for all collectives.

A `Message` is what one argument says: memory, counts, displacements and a datatype that consists of one
basic type. What cannot be such a message is left to mpi4py, with its own semantics and exceptions.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import index

import numpy as np
from mpi4py import MPI

from compcoll import arrays, dtypes
from compcoll.devices.memory import DeviceArray

__all__ = ["Message", "has_bfloat16", "is_small", "parse", "without_bfloat16"]

_BFLOAT16_T = getattr(MPI, "BFLOAT16_T", None)


class Message:
    """A parsed buffer argument: ``blocks`` contiguous arrays of one real type.

    Attributes
    ----------
    dtype : numpy.dtype
        The basic type; the real one for complex types.
    counts : list of int
        Elements of ``dtype`` in each block.
    """

    __slots__ = (
        "_datatype", "_displs", "_entries", "_extent", "_memory", "_plain", "_unpack", "counts", "dtype",
    )  # fmt: skip

    def __init__(self, memory, datatype, dtype, per_entry: int, entries: list[int], displs: list[int]):
        self.dtype = dtype
        self.counts = [n * per_entry for n in entries]
        self._memory, self._datatype = memory, datatype
        self._entries, self._displs = entries, displs
        self._extent = datatype.Get_extent()[1]
        self._plain = self._extent == per_entry * dtype.itemsize and datatype.is_predefined
        self._unpack: list[tuple[int, np.ndarray]] = []
        self._check()

    @property
    def is_plain(self) -> bool:
        """Whether blocks are arrays as they lie there."""
        return self._plain

    @property
    def device(self):
        """Where the memory is; None for the host."""
        return self._memory.device if isinstance(self._memory, DeviceArray) else None

    @property
    def nbytes(self) -> int:
        """Bytes of the largest block."""
        return max(self.counts, default=0) * self.dtype.itemsize

    @property
    def entries(self) -> int:
        """Entries of the first block, in units of its datatype."""
        return self._entries[0]

    def source(self, i: int) -> np.ndarray:
        """Block i, to be read."""
        if self._plain:
            return self._slice(i)
        packed = np.empty(self.counts[i] * self.dtype.itemsize, np.uint8)
        self._datatype.Pack(self._at(i), packed, 0, MPI.COMM_SELF)
        return packed.view(self.dtype)

    def target(self, i: int) -> np.ndarray:
        """Block i, to be written; `finish` puts it where it belongs."""
        if self._plain:
            return self._slice(i)
        scratch = self.source(i)
        self._unpack.append((i, scratch))
        return scratch

    def sources(self) -> list[np.ndarray]:
        """All blocks, to be read."""
        return [self.source(i) for i in range(len(self.counts))]

    def targets(self) -> list[np.ndarray]:
        """All blocks, to be written."""
        return [self.target(i) for i in range(len(self.counts))]

    def finish(self) -> None:
        """Write the blocks of derived datatypes through."""
        for i, scratch in self._unpack:
            self._datatype.Unpack(scratch.view(np.uint8), 0, self._at(i), MPI.COMM_SELF)

    def masked(self, keep: Sequence[bool]) -> list:
        """The argument in mpi4py's form, with the counts of the other blocks set to 0."""
        counts = [n if k else 0 for n, k in zip(self._entries, keep, strict=True)]
        return [self._memory, counts, self._displs, self._datatype]

    def masked_one(self) -> list:
        """The argument in mpi4py's form, with a count of 0."""
        return [self._memory, 0, self._datatype]

    def _slice(self, i: int) -> np.ndarray:
        start = self._displs[i] * self._extent
        return self._memory[start : start + self.counts[i] * self.dtype.itemsize].view(self.dtype)

    def _at(self, i: int) -> list:
        return [self._memory[self._displs[i] * self._extent :], self._entries[i], self._datatype]

    def _check(self) -> None:
        lower, extent = self._datatype.Get_true_extent()
        for n, displ in zip(self._entries, self._displs, strict=True):
            first = displ * self._extent + lower
            end = first + (n - 1) * self._extent + extent
            if n < 0:
                raise ValueError(f"count {n} is negative")
            if n and (first < 0 or end > self._memory.size):
                name = self._datatype.Get_name() or "a derived datatype"
                raise ValueError(
                    f"count {n} at displacement {displ} of {name} needs {end} bytes, "
                    f"and the buffer has {self._memory.size}"
                )


def is_small(spec, limit: int) -> bool:
    """Whether a buffer argument surely describes fewer than ``limit`` bytes; made to be quick."""
    if type(spec) is np.ndarray:
        return spec.nbytes < limit
    if type(spec) in (list, tuple) and spec and type(spec[0]) is np.ndarray:
        last = spec[-1]
        return spec[0].nbytes < limit and (not isinstance(last, MPI.Datatype) or last.is_predefined)
    return False


def parse(spec, blocks: int | None = None, *, vector: bool = False, device: bool = False) -> Message | None:
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

    Returns
    -------
    Message or None
        None where mpi4py has to deal with it: no memory, or a datatype of several basic types or of
        one that frames do not hold.

    Raises
    ------
    ValueError
        Where counts and displacements go past the memory.
    """
    try:
        buffer, count, displ, datatype = _unpack(spec)
        memory, own = _memory(buffer, device)
        datatype = own if datatype is None else _datatype(datatype)
        if datatype is None:
            return None
        basic = basic_type(datatype)
        if basic is None:
            return None
        dtype, per_entry = basic
        extent = datatype.Get_extent()[1]
        if extent <= 0:
            return None
        if vector and blocks is not None:
            entries, displs = _vector(count, displ, blocks, memory.size, extent)
        else:
            entries, displs = _simple(count, displ, blocks, memory.size, extent)
    except (TypeError, KeyError, BufferError, _LeftToMPI):
        return None
    message = Message(memory, datatype, dtype, per_entry, entries, displs)
    # MPI packs and unpacks host memory alone.
    return message if message.device is None or message.is_plain else None


def basic_type(datatype: MPI.Datatype) -> tuple[np.dtype, int] | None:
    """The one real type that a datatype consists of and how many of it, or None."""
    dtype = _predefined(datatype) if datatype.is_predefined else _homogeneous(datatype)
    if dtype is None or dtype not in dtypes.CODES:
        return None
    real = dtypes.real_dtype(dtype)
    return real, datatype.Get_size() // real.itemsize


def has_bfloat16(spec) -> bool:
    """Whether a buffer argument is an array of bfloat16, or a list that begins with one."""
    first = spec[0] if isinstance(spec, (list, tuple)) and spec else spec
    return "bfloat16" in str(getattr(first, "dtype", ""))


def without_bfloat16(spec):
    """A buffer argument in a form that mpi4py takes: it knows no bfloat16 arrays."""
    if _BFLOAT16_T is None:
        raise TypeError("this mpi4py or MPI has no bfloat16")
    if isinstance(spec, (list, tuple)):
        first, *rest = spec
        memory, _ = _memory(first)
        return [memory, *rest] if any(_is_type(x) for x in rest) else [memory, *rest, _BFLOAT16_T]
    return [_memory(spec)[0], _BFLOAT16_T]


class _LeftToMPI(Exception):
    """mpi4py says best what is wrong with this argument."""


def _is_type(x) -> bool:
    return isinstance(x, (MPI.Datatype, str))


def _unpack(spec) -> tuple:
    """(buffer, count or counts, displacement or displacements, datatype), None for what is not given."""
    if not isinstance(spec, (list, tuple)):
        return spec, None, None, None
    if len(spec) == 2:
        buffer, second = spec
        if _is_type(second):
            return buffer, None, None, second
        return (buffer, *second, None) if isinstance(second, tuple) else (buffer, second, None, None)
    if len(spec) == 3:
        buffer, second, datatype = spec
        return (buffer, *second, datatype) if isinstance(second, tuple) else (buffer, second, None, datatype)
    if len(spec) == 4:
        return tuple(spec)
    raise _LeftToMPI


def _memory(buffer, device: bool = False) -> tuple[np.ndarray | DeviceArray, MPI.Datatype | None]:
    """The bytes behind a buffer, in the order of memory, and the datatype of its elements."""
    if buffer is None or buffer is MPI.BOTTOM or buffer is MPI.IN_PLACE:
        raise _LeftToMPI
    if device and arrays.is_cuda(buffer):
        found = arrays.on_device(buffer)
        if found is None:
            raise _LeftToMPI
        return found.view(np.uint8), _mpi_type(found.dtype)
    view = arrays.host_view(buffer)
    flat = view.ravel(order="K")
    if not (view.flags.c_contiguous or view.flags.f_contiguous):
        raise _LeftToMPI
    return flat.view(np.uint8), _mpi_type(view.dtype)


def _mpi_type(dtype: np.dtype) -> MPI.Datatype | None:
    if dtype == dtypes.BFLOAT16:
        return _BFLOAT16_T
    if not dtype.isnative:
        return None
    try:
        return MPI.Datatype.fromcode(dtype.char)
    except (KeyError, ValueError):
        return None


def _datatype(datatype) -> MPI.Datatype:
    return MPI.Datatype.fromcode(datatype) if isinstance(datatype, str) else datatype


_dtype_of_handle: dict[int, np.dtype | None] = {}


def _predefined(datatype: MPI.Datatype) -> np.dtype | None:
    handle = datatype.handle
    if handle not in _dtype_of_handle:
        _dtype_of_handle[handle] = _dtype(datatype)
    return _dtype_of_handle[handle]


def _dtype(datatype: MPI.Datatype) -> np.dtype | None:
    if datatype == MPI.DATATYPE_NULL:
        return None
    if datatype == MPI.BYTE:
        return np.dtype(np.uint8)
    if _BFLOAT16_T is not None and datatype == _BFLOAT16_T:
        return dtypes.BFLOAT16
    try:
        return np.dtype(datatype.tocode())
    except (TypeError, ValueError, KeyError):
        return None


def _homogeneous(datatype: MPI.Datatype) -> np.dtype | None:
    """The basic type of a derived datatype; None where it has several."""
    base, combiner, params = datatype.decode()
    if combiner in ("NAMED", "F90_INTEGER", "F90_REAL", "F90_COMPLEX"):
        return _predefined(datatype)
    parts = params["datatypes"] if combiner == "STRUCT" else [base]
    found = {_predefined(part) if part.is_predefined else _homogeneous(part) for part in parts}
    return found.pop() if len(found) == 1 else None


def _simple(count, displ, blocks: int | None, nbytes: int, extent: int) -> tuple[list[int], list[int]]:
    start = 0 if displ is None else index(displ)
    parts = 1 if blocks is None else blocks
    if count is None:
        entries, rest = divmod(nbytes - start * extent, extent)
        if rest or start < 0 or entries < 0 or entries % parts:
            raise _LeftToMPI
        count = entries // parts
    n = index(count)
    return [n] * parts, [start + i * n for i in range(parts)]


def _vector(counts, displs, blocks: int, nbytes: int, extent: int) -> tuple[list[int], list[int]]:
    if counts is None:
        entries, rest = divmod(nbytes, extent)
        if rest:
            raise _LeftToMPI
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
        raise _LeftToMPI
    return [index(v) for v in values]
