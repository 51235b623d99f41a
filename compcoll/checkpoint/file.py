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

The header says step and name of the set, its job, rank and number of ranks, the set that holds the bases of
differences or null, and for each array its name, dtype, shape, the shape of the whole and the place in it,
and its frames' bytes. A job is named by its first set.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from compcoll.codecs import Codec, delta
from compcoll.core import _cpu, dtypes
from compcoll.core.errors import FrameError
from compcoll.devices import arrays as device_arrays
from compcoll.frame import inspect

__all__ = ["Part", "decode", "encode", "read_header", "verify"]

MAGIC, VERSION = b"CCKP", 2
_PREFIX = struct.Struct("<4sIQQIII")
#: Values in a frame of a codec that takes them in a row.
_PIECE_NBYTES = 4 << 20


@dataclass(frozen=True)
class Part:
    """A rank's part of an array that all ranks hold together.

    Attributes
    ----------
    array : numpy.ndarray
    shape : tuple of int
        Of the whole.
    offset : tuple of int
        Where the part begins in it.
    """

    array: Any
    shape: tuple[int, ...]
    offset: tuple[int, ...]

    def __post_init__(self) -> None:
        own = np.shape(self.array)
        if not len(own) == len(self.shape) == len(self.offset) or any(
            o < 0 or o + n > whole for o, n, whole in zip(self.offset, own, self.shape, strict=True)
        ):
            raise ValueError(
                f"a part of shape {own} at {self.offset} does not lie in an array of {self.shape}"
            )


def encode(
    values: Mapping[str, Any], spec: Codec, facts: dict[str, Any], bases: Mapping[str, np.ndarray] | None
) -> np.ndarray:
    """The bytes of a file.

    Parameters
    ----------
    values : mapping of str to array or Part
    spec : Codec
    facts : dict
        Of the set and the rank, for the header.
    bases : mapping, optional
        Arrays whose differences are stored, by name; others are stored whole.

    Raises
    ------
    TypeError
        For an array whose dtype, or mask, `decode` would not give back.
    """
    described, frames = [], []
    for name, value in values.items():
        part = value if isinstance(value, Part) else None
        array = device_arrays.to_host(value.array if part else value)
        dtype = _described(name, part.array if part else value, array.dtype)
        base = bases.get(name) if bases is not None else None
        if base is not None and (base.dtype, base.shape) != (array.dtype, array.shape):
            base = None
        own = list(_frames(array, spec, base))
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


def _frames(array: np.ndarray, spec: Codec, base: np.ndarray | None) -> Any:
    """The frames of an array: one where its shape matters, else of pieces in a row."""
    if array.dtype not in dtypes.CODES:
        array = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        base = base if base is None else np.ascontiguousarray(base).reshape(-1).view(np.uint8)
    if spec.has_shape and array.ndim > 1:
        yield spec.encode(array.reshape(-1, *array.shape[-2:]) if array.ndim > 3 else array)
        return
    flat, step = array.reshape(-1), _PIECE_NBYTES // array.itemsize
    known = base if base is None else base.reshape(-1)
    for begin in range(0, flat.size, step):
        piece = flat[begin : begin + step]
        if isinstance(spec, delta.Delta):
            yield delta.encode(piece, None if known is None else known[begin : begin + step])
        else:
            yield spec.encode(piece)


def read_header(path: str) -> dict[str, Any]:
    """The header of a file, whose frames are not looked at; FrameError or OSError."""
    with open(path, "rb") as file:
        prefix = np.frombuffer(file.read(_PREFIX.size), np.uint8)
        return _parsed(prefix, np.frombuffer(file.read(_prefix(prefix)[0]), np.uint8))


def verify(data: np.ndarray) -> dict[str, Any]:
    """The header of a file's bytes; FrameError where any of them is damaged."""
    header_nbytes, frames_nbytes, _, checksum = _prefix(data)
    begin = _PREFIX.size + header_nbytes
    if data.size != begin + frames_nbytes:
        raise FrameError(f"a file of {data.size} bytes has not the {begin + frames_nbytes} that it says")
    if _cpu.checksum(data[begin:]) != checksum:
        raise FrameError("the checksum of a file's frames does not match: they are damaged")
    return _parsed(data, data[_PREFIX.size : begin])


def _prefix(data: np.ndarray) -> tuple[int, int, int, int]:
    """Bytes of header and frames, and their checksums."""
    if data.size < _PREFIX.size:
        raise FrameError(f"{data.size} bytes are no checkpoint")
    magic, version, *fields, own = _PREFIX.unpack_from(data.data)
    if (magic, version) != (MAGIC, VERSION):
        raise FrameError(
            f"{magic!r}, version {version}, is not {MAGIC!r}, version {VERSION}, which this release reads"
        )
    if own != _cpu.checksum(data[:32]):
        raise FrameError("the beginning of a checkpoint is damaged")
    return tuple(fields)


def _parsed(prefix: np.ndarray, header: np.ndarray) -> dict[str, Any]:
    nbytes, _, checksum, _ = _prefix(prefix)
    if header.size != nbytes or _cpu.checksum(header) != checksum:
        raise FrameError("the header of a checkpoint is damaged")
    found: dict[str, Any] = json.loads(header.tobytes())
    return found


def decode(data: np.ndarray, bases: Mapping[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
    """The arrays of a file's bytes, which are sound, by name."""
    at, found = _PREFIX.size + _prefix(data)[0], {}
    header = _parsed(data, data[_PREFIX.size : at])
    for one in header["arrays"]:
        dtype = _dtype(one["dtype"])
        array = np.empty(one["shape"], dtype)
        flat = array.reshape(-1)
        base = bases.get(one["name"]) if bases is not None else None
        known = None if base is None else np.ascontiguousarray(base).reshape(-1)
        if dtype not in dtypes.CODES:
            flat = flat.view(np.uint8)
            known = known if known is None else known.view(np.uint8)
        begin = 0
        for frame_nbytes in one["frames"]:
            frame = data[at : at + frame_nbytes]
            n = inspect(frame).size
            piece = flat[begin : begin + n]
            delta.decode(frame, None if known is None else known[begin : begin + n], piece)
            at, begin = at + frame_nbytes, begin + n
        if begin != flat.size:
            raise FrameError(f"the frames of {one['name']!r} hold {begin} of {prod(one['shape'])} values")
        found[one["name"]] = array
    return found


def _described(name: str, value: Any, dtype: np.dtype) -> Any:
    """A dtype for the header; TypeError where JSON would not give it back."""
    described = None
    with suppress(ValueError):
        has_name = dtype.type is getattr(ml_dtypes, dtype.name, None)
        described = dtype.name if has_name else np.lib.format.dtype_to_descr(dtype)
    if described is None or dtype.hasobject or _dtype(json.loads(json.dumps(described))) != dtype:
        raise TypeError(f"{name!r}: checkpoints cannot hold arrays of dtype {dtype}")
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(
            f"{name!r} is a masked array, of which a checkpoint holds data or mask, each by itself"
        )
    return described


def _dtype(described: Any) -> np.dtype:
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
