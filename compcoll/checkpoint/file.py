"""One rank's file of a checkpoint.

====== ===== ==================================================================
offset bytes field, little-endian
====== ===== ==================================================================
0      4     magic ``CCKP``
4      4     version, 2
8      8     bytes of the header
16     8     bytes of the frames
24     4     checksum of the header (csrc/checksum.h)
28     4     checksum of the frames
32     4     checksum of the 32 bytes before it
36           the header, JSON; then the frames (compcoll/frame.py) of all arrays
====== ===== ==================================================================

The header has step and name of the set, its job, rank and number of ranks, the set that holds the bases of
differences or null, and for each array its name, dtype, shape, the shape of the whole array and the offset in
it, and the sizes of its frames. A job has the name of its first set.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from compcoll.codecs import Codec, delta
from compcoll.core import _cpu, dtypes
from compcoll.core.errors import FrameError
from compcoll.devices import arrays as device_arrays
from compcoll.frame import inspect

__all__ = ["Part", "decode", "dtype_of", "encode", "lies_within", "read_header", "verify"]

MAGIC, VERSION = b"CCKP", 2
_PREFIX = struct.Struct("<4sIQQIII")
#: Bytes of values in a frame, for codecs that code values in a row.
_PIECE_NBYTES = 4 << 20


def lies_within(offset: Sequence[int], shape: Sequence[int], whole: Sequence[int]) -> bool:
    """True if an array of a shape, at an offset, is within another one."""
    return len(offset) == len(shape) == len(whole) and all(
        o >= 0 and n >= 0 and o + n <= most for o, n, most in zip(offset, shape, whole, strict=True)
    )


@dataclass(frozen=True)
class Part:
    """A rank's part of an array that is distributed over all ranks.

    Attributes
    ----------
    array : numpy.ndarray
    shape : tuple of int
        Shape of the whole array.
    offset : tuple of int
        Index of the part's first element in it.
    """

    array: Any
    shape: tuple[int, ...]
    offset: tuple[int, ...]

    def __post_init__(self) -> None:
        own = np.shape(self.array)
        if not lies_within(self.offset, own, self.shape):
            raise ValueError(
                f"a part of shape {own} at {self.offset} is not within an array of shape {self.shape}"
            )


def encode(
    values: Mapping[str, Any], spec: Codec, facts: dict[str, Any], bases: Mapping[str, np.ndarray] | None
) -> np.ndarray:
    """Encode arrays into the bytes of a file.

    Parameters
    ----------
    values : mapping of str to array or Part
    spec : Codec
    facts : dict
        The header's entries about the set and the rank.
    bases : mapping, optional
        Arrays whose differences are stored, by name; others are stored whole.

    Raises
    ------
    TypeError
        For an array whose dtype or mask `decode` could not restore.
    """
    described, frames = [], []
    for name, value in values.items():
        part = value if isinstance(value, Part) else None
        array = device_arrays.to_host(value.array if part else value)
        dtype = _described(name, part.array if part else value, array.dtype)
        base = bases.get(name) if bases is not None else None
        if base is not None and (base.dtype, base.shape) != (array.dtype, array.shape):
            base = None
        own = _frames(array, spec, base)
        frames += own
        described.append(
            {
                "name": str(name),
                "dtype": dtype,
                "shape": list(array.shape),
                "whole": list(part.shape) if part else None,
                "offset": list(part.offset) if part else None,
                "frames": [frame.size for frame in own],
            }
        )
    header = np.frombuffer(json.dumps({**facts, "arrays": described}).encode(), np.uint8)
    data = np.concatenate([np.empty(_PREFIX.size, np.uint8), header, *frames])
    begin = _PREFIX.size + header.size
    sums = _cpu.checksum(header), _cpu.checksum(data[begin:])
    prefix = _PREFIX.pack(MAGIC, VERSION, header.size, data.size - begin, *sums, 0)
    data[: _PREFIX.size] = np.frombuffer(prefix, np.uint8)
    data[32:36].view("<u4")[0] = _cpu.checksum(data[:32])
    return data


def _frames(array: np.ndarray, spec: Codec, base: np.ndarray | None) -> list[np.ndarray]:
    """The frames of an array: one if its shape matters, else one for each piece of its values."""
    if spec.has_shape and array.ndim > 1 and array.dtype in dtypes.CODES:
        return [spec.encode(array.reshape(-1, *array.shape[-2:]) if array.ndim > 3 else array)]
    row, known = _row(array), None if base is None else _row(base)
    step = _PIECE_NBYTES // row.itemsize
    pieces = [slice(begin, begin + step) for begin in range(0, row.size, step)]
    if isinstance(spec, delta.Delta):
        return [delta.encode(row[piece], None if known is None else known[piece]) for piece in pieces]
    return [spec.encode(row[piece]) for piece in pieces]


def _row(array: np.ndarray) -> np.ndarray:
    """The values of an array in a row, or their bytes if frames cannot hold them; a view if possible."""
    row = np.ascontiguousarray(array).reshape(-1)
    return row if array.dtype in dtypes.CODES else row.view(np.uint8)


class _Prefix(NamedTuple):
    header_nbytes: int
    frames_nbytes: int
    header_checksum: int
    frames_checksum: int


def read_header(path: str) -> dict[str, Any]:
    """Read the header of a file without its frames; FrameError or OSError."""
    with open(path, "rb") as file:
        prefix = _read_prefix(np.frombuffer(file.read(_PREFIX.size), np.uint8))
        return _parse(prefix, np.frombuffer(file.read(prefix.header_nbytes), np.uint8))


def verify(data: np.ndarray) -> dict[str, Any]:
    """Check all bytes of a file and return its header; FrameError if any is damaged."""
    prefix = _read_prefix(data)
    begin = _PREFIX.size + prefix.header_nbytes
    if data.size != begin + prefix.frames_nbytes:
        raise FrameError(
            f"the file has {data.size} bytes, but its header says {begin + prefix.frames_nbytes}"
        )
    if _cpu.checksum(data[begin:]) != prefix.frames_checksum:
        raise FrameError("the checksum of a file's frames does not match: they are damaged")
    return _parse(prefix, data[_PREFIX.size : begin])


def _read_prefix(data: np.ndarray) -> _Prefix:
    if data.size < _PREFIX.size:
        raise FrameError(f"{data.size} bytes are less than a checkpoint's {_PREFIX.size} first bytes")
    magic, version, *fields, own = _PREFIX.unpack_from(data.data)
    if (magic, version) != (MAGIC, VERSION):
        raise FrameError(
            f"{magic!r}, version {version}, is not {MAGIC!r}, version {VERSION}, which this release reads"
        )
    if own != _cpu.checksum(data[:32]):
        raise FrameError("the beginning of a checkpoint is damaged")
    return _Prefix(*fields)


def _parse(prefix: _Prefix, header: np.ndarray) -> dict[str, Any]:
    if header.size != prefix.header_nbytes or _cpu.checksum(header) != prefix.header_checksum:
        raise FrameError("the header of a checkpoint is damaged")
    found: dict[str, Any] = json.loads(header.tobytes())
    return found


def decode(data: np.ndarray, bases: Mapping[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
    """Decode the arrays from a file's sound bytes, by name."""
    prefix = _read_prefix(data)
    at, found = _PREFIX.size + prefix.header_nbytes, {}
    for one in _parse(prefix, data[_PREFIX.size : at])["arrays"]:
        array = np.empty(one["shape"], dtype_of(one["dtype"]))
        base = bases.get(one["name"]) if bases is not None else None
        row, known = _row(array), None if base is None else _row(base)
        begin = 0
        for frame_nbytes in one["frames"]:
            frame = data[at : at + frame_nbytes]
            piece = slice(begin, begin + inspect(frame).size)
            delta.decode(frame, None if known is None else known[piece], row[piece])
            at, begin = at + frame_nbytes, piece.stop
        if begin != row.size:
            raise FrameError(f"the frames of {one['name']!r} hold {begin} of {row.size} values")
        found[one["name"]] = array
    return found


def _described(name: str, value: Any, dtype: np.dtype) -> Any:
    """Describe a dtype for the header; TypeError if JSON could not restore it."""
    described = None
    with suppress(ValueError):
        has_name = dtype.type is getattr(ml_dtypes, dtype.name, None)
        described = dtype.name if has_name else np.lib.format.dtype_to_descr(dtype)
    if described is None or dtype.hasobject or dtype_of(json.loads(json.dumps(described))) != dtype:
        raise TypeError(f"{name!r}: checkpoints cannot hold arrays of dtype {dtype}")
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name!r} is a masked array: save its data and its mask as two arrays")
    return described


def dtype_of(described: Any) -> np.dtype:
    """The dtype of a description in a header."""
    if isinstance(described, str) and hasattr(ml_dtypes, described):
        return np.dtype(getattr(ml_dtypes, described))
    return np.lib.format.descr_to_dtype(_fields(described))


def _fields(described: Any) -> Any:
    """The description of a dtype, with the tuples that JSON has as lists."""
    if not isinstance(described, list):
        return described
    return [
        (tuple(name) if isinstance(name, list) else name, _fields(of), *map(tuple, shape))
        for name, of, *shape in described
    ]
