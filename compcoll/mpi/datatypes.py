"""MPI's datatypes: predefined ones and NumPy's, and derived ones flattened.

Flattening finds the basic type of a derived datatype and where its bytes lie. That is done once for each
datatype, which keeps it as an attribute until it is freed: a handle may be that of another datatype by then.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from compcoll.core import dtypes
from compcoll.engine.layout import EMPTY, Piece, contiguous, joined, joined_runs, repeated

__all__ = ["LACKS_FLOAT16", "Entry", "entry_of", "moved_as", "mpi_type", "own_sum", "predefined_type"]

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
    """The datatype that moves a 16-bit float unknown to MPI."""
    known = _OWN_BFLOAT16 if dtype == dtypes.BFLOAT16 else MPI.DATATYPE_NULL
    return known if known != MPI.DATATYPE_NULL else MPI.UINT16_T


@cache
def own_sum(dtype: np.dtype) -> MPI.Op:
    """`MPI.SUM` for what a type is `moved_as`."""
    if moved_as(dtype) != MPI.UINT16_T:
        return MPI.SUM

    def add(theirs: Any, ours: Any, datatype: MPI.Datatype) -> None:
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


# -- derived datatypes


class Entry:
    """One entry of a datatype: its elements and the layout of its bytes.

    Attributes
    ----------
    element : numpy.dtype or None
        The basic type of all its values, a complex one for pairs of real numbers; None where there are
        several, or one that frames do not hold.
    n : int
        How many real numbers, or integers, it has.
    is_basic : bool
        Whether entries are elements of an array.
    extent, lower, length : int
        MPI's extent, and where its bytes begin and over how many they stretch.
    piece : Piece
        Where its bytes lie, from the start of the entry on.
    shape : tuple of int or None
        Elements along each dimension, the last one the fastest in packed order, where it has a shape.
    """

    __slots__ = ("_many", "element", "extent", "is_basic", "length", "lower", "n", "piece", "shape")

    def __init__(self, datatype: MPI.Datatype):
        parts = _taken_apart(datatype)
        basics = set(parts.basics)
        basic = basics.pop() if len(basics) == 1 else None
        self.element = basic if basic in dtypes.CODES else None
        self.n = 0 if self.element is None else parts.nbytes // dtypes.real_dtype(self.element).itemsize
        self.extent = datatype.Get_extent()[1]
        self.lower, self.length = datatype.Get_true_extent()
        self.piece, self.shape = parts.piece, parts.shape
        self.is_basic = datatype.is_predefined and self.extent == parts.nbytes
        self._many: tuple[int, Piece] = (1, self.piece)

    def of(self, element: np.dtype) -> Entry:
        """The same, of another type of the same size."""
        other = copy(self)
        other.element = element
        return other

    def piece_of(self, n: int) -> Piece:
        """Layout of the bytes of ``n`` entries."""
        many = self._many
        if many[0] != n:
            many = self._many = n, repeated(n, self.extent, self.piece)
        return many[1]

    def shape_of(self, n: int) -> tuple[int, ...] | None:
        """The shape of ``n`` entries."""
        return None if self.shape is None else _shape((n, *self.shape))


def entry_of(datatype: MPI.Datatype) -> Entry:
    """The `Entry` of a datatype; MPI's error where it is not committed."""
    if datatype.is_predefined:
        handle = datatype.handle
        if handle not in _predefined:
            _predefined[handle] = Entry(datatype)
        return _predefined[handle]
    found = datatype.Get_attr(_keyval())
    if isinstance(found, Entry):
        return found
    MPI.Intracomm.Send_init(_SELF, [_ANY, 1, datatype], 0).Free()  # Open MPI crashes in other functions
    entry = Entry(datatype)
    datatype.Set_attr(_keyval(), entry)
    return entry


# A program may put another communicator into its place.
_SELF = MPI.COMM_SELF
#: Memory that nobody looks at.
_ANY = np.empty(1, np.uint8)
_predefined: dict[int, Entry] = {}


@cache
def _keyval() -> int:
    """Key of an attribute that copies do not have: they are taken apart anew."""
    return MPI.Datatype.Create_keyval()


class _Parts(NamedTuple):
    """A datatype's basic types, its bytes and the shape of its elements."""

    basics: frozenset[np.dtype | None]
    piece: Piece
    shape: tuple[int, ...] | None

    @property
    def nbytes(self) -> int:
        return self.piece[1].nbytes


_NOTHING = _Parts(frozenset(), EMPTY, (0,))


def _taken_apart(datatype: MPI.Datatype) -> _Parts:
    if datatype.is_predefined:
        nbytes = 0 if datatype == MPI.DATATYPE_NULL else datatype.Get_size()
        return _Parts(frozenset([predefined_type(datatype)]), contiguous(nbytes), ())
    old, combiner, params = datatype.decode()
    if combiner == "STRUCT":
        return _struct(**params)
    try:
        make = _COMBINERS.get(combiner)
        if make is None:
            return _Parts(frozenset([None]), contiguous(datatype.Get_size()), None)
        made = make(_taken_apart(old), old.Get_extent()[1], **params)
    finally:
        _release(old)
    return made if made.nbytes else _NOTHING


def _release(datatype: MPI.Datatype) -> None:
    """Give back a handle that `decode` has made."""
    if not datatype.is_predefined:
        datatype.Free()


# -- one function for each way to make a datatype: parts and extent of the old one, and MPI's parameters


def _same(old: _Parts, unused: int, /, **_: Any) -> _Parts:
    return old


def _contiguous(old: _Parts, extent: int, count: int) -> _Parts:
    return _shaped(old, (count,), repeated(count, extent, old.piece))


def _hvector(old: _Parts, extent: int, count: int, blocklength: int, stride: int) -> _Parts:
    block = repeated(blocklength, extent, old.piece)
    return _shaped(old, (count, blocklength), repeated(count, stride, block))


def _vector(old: _Parts, extent: int, count: int, blocklength: int, stride: int) -> _Parts:
    return _hvector(old, extent, count, blocklength, stride * extent)


def _hindexed(old: _Parts, extent: int, blocklengths: Any, displacements: Any) -> _Parts:
    n, at = np.asarray(blocklengths, np.int64), np.asarray(displacements, np.int64)
    offset, layout = old.piece
    if repeated(2, extent, old.piece)[1] == contiguous(2 * layout.nbytes)[1]:
        piece = joined_runs(at + offset, n * layout.nbytes)
    else:
        each = {count: repeated(count, extent, old.piece) for count in np.unique(n).tolist()}
        piece = joined(at, [each[count] for count in n.tolist()])
    return _Parts(old.basics, piece, None)


def _indexed(old: _Parts, extent: int, blocklengths: Any, displacements: Any) -> _Parts:
    return _hindexed(old, extent, blocklengths, np.asarray(displacements, np.int64) * extent)


def _hindexed_block(old: _Parts, extent: int, blocklength: int, displacements: Any) -> _Parts:
    return _hindexed(old, extent, np.full(len(displacements), blocklength), displacements)


def _indexed_block(old: _Parts, extent: int, blocklength: int, displacements: Any) -> _Parts:
    return _indexed(old, extent, np.full(len(displacements), blocklength), displacements)


def _struct(blocklengths: list[int], displacements: list[int], datatypes: list[MPI.Datatype]) -> _Parts:
    basics: set[np.dtype | None] = set()
    pieces = []
    for n, datatype in zip(blocklengths, datatypes, strict=True):
        part = _taken_apart(datatype)
        pieces.append(repeated(n, datatype.Get_extent()[1], part.piece))
        if n and part.nbytes:
            basics |= part.basics
        _release(datatype)
    return _Parts(frozenset(basics), joined(np.asarray(displacements, np.int64), pieces), None)


def _subarray(
    old: _Parts, extent: int, sizes: list[int], subsizes: list[int], starts: list[int], order: int
) -> _Parts:
    if order == MPI.ORDER_FORTRAN:
        sizes, subsizes, starts = sizes[::-1], subsizes[::-1], starts[::-1]
    piece = old.piece
    for size, n, start in zip(reversed(sizes), reversed(subsizes), reversed(starts), strict=True):
        offset, layout = repeated(n, extent, piece)
        piece = offset + start * extent, layout
        extent *= size
    return _shaped(old, tuple(subsizes), piece)


def _darray(
    old: _Parts,
    extent: int,
    size: int,
    rank: int,
    gsizes: list[int],
    distribs: list[int],
    dargs: list[int],
    psizes: list[int],
    order: int,
) -> _Parts:
    places = np.unravel_index(rank, psizes)  # the grid of processes is in C's order always
    axes = list(zip(gsizes, distribs, dargs, psizes, map(int, places), strict=True))
    if order == MPI.ORDER_FORTRAN:
        axes.reverse()
    piece, shape = old.piece, list[int]()
    for gsize, distrib, darg, psize, place in reversed(axes):
        firsts, counts = _owned(gsize, distrib, darg, psize, place)
        each = {n: repeated(n, extent, piece) for n in np.unique(counts).tolist()}
        piece = joined(firsts * extent, [each[n] for n in counts.tolist()])
        shape.insert(0, int(counts.sum()))
        extent *= gsize
    return _shaped(old, tuple(shape), piece)


def _owned(n: int, distrib: int, darg: int, psize: int, place: int) -> tuple[np.ndarray, np.ndarray]:
    """First indices and lengths of the blocks of an axis of ``n`` that belong to one of its processes."""
    if distrib == MPI.DISTRIBUTE_NONE:
        return np.array([0]), np.array([n])
    block = darg
    if darg == MPI.DISTRIBUTE_DFLT_DARG:
        block = -(-n // psize) if distrib == MPI.DISTRIBUTE_BLOCK else 1
    firsts = np.arange(place * block, n, psize * block)
    return firsts, np.minimum(block, n - firsts)


_COMBINERS: dict[str, Callable[..., _Parts]] = {
    "DUP": _same,
    "RESIZED": _same,
    "CONTIGUOUS": _contiguous,
    "VECTOR": _vector,
    "HVECTOR": _hvector,
    "INDEXED": _indexed,
    "HINDEXED": _hindexed,
    "INDEXED_BLOCK": _indexed_block,
    "HINDEXED_BLOCK": _hindexed_block,
    "SUBARRAY": _subarray,
    "DARRAY": _darray,
}


def _shaped(old: _Parts, counts: tuple[int, ...], piece: Piece) -> _Parts:
    """Parts of the same basic types, whose elements have further dimensions before those of the old ones."""
    return _Parts(old.basics, piece, None if old.shape is None else _shape((*counts, *old.shape)))


def _shape(counts: tuple[int, ...]) -> tuple[int, ...]:
    """Dimensions of more than one element."""
    return tuple(n for n in counts if n != 1)
