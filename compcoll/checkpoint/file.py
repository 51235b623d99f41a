"""One rank's file of a checkpoint.

====== ===== ==================================================================
offset bytes field, little-endian
====== ===== ==================================================================
0      4     magic ``CCKP``
4      4     version, 1
8      8     bytes of the header
16     8     bytes of the frames
24     4     checksum of header and frames (csrc/checksum.h)
28     4     checksum of the 28 bytes before it
32           the header, JSON; then the frames (compcoll/frame.py) of all arrays
====== ===== ==================================================================

The header says step and name of the set, rank and number of ranks, the set that holds the bases of
differences or null, and for each array its name, dtype, shape, the shape of the whole and the place in it,
and its frames' bytes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from compcoll.codecs import Codec, delta
from compcoll.core import _cpu, dtypes
from compcoll.core.errors import FrameError
from compcoll.devices import arrays as device_arrays
from compcoll.frame import inspect

__all__ = ["Part", "decode", "encode", "header_of", "read_header", "verify"]

MAGIC, VERSION = b"CCKP", 1
_PREFIX = struct.Struct("<4sIQQII")
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
    """
    described, frames = [], []
    for name, value in values.items():
        part = value if isinstance(value, Part) else None
        array = device_arrays.to_host(value.array if part else value)
        base = bases.get(name) if bases is not None else None
        if base is not None and (base.dtype, base.shape) != (array.dtype, array.shape):
            base = None
        own = list(_frames(array, spec, base))
        frames += own
        described.append({
            "name": str(name), "dtype": _dtype_name(array.dtype), "shape": list(array.shape),
            "whole": list(part.shape) if part else None, "offset": list(part.offset) if part else None,
            "frames": [frame.size for frame in own],
        })  # fmt: skip
    header = np.frombuffer(json.dumps({**facts, "arrays": described}).encode(), np.uint8)
    body = np.concatenate([header, *frames])
    prefix = bytearray(
        _PREFIX.pack(MAGIC, VERSION, header.size, body.size - header.size, _cpu.checksum(body), 0)
    )
    prefix[28:] = _cpu.checksum(np.frombuffer(prefix[:28], np.uint8)).to_bytes(4, "little")
    return np.concatenate([np.frombuffer(prefix, np.uint8), body])


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
        data = file.read(_PREFIX.size)
        nbytes, *_ = _prefix(np.frombuffer(data, np.uint8))
        return _parsed(file.read(nbytes), nbytes)


def verify(data: np.ndarray) -> dict[str, Any]:
    """The header of a file's bytes; FrameError where any of them is damaged."""
    header_nbytes, frames_nbytes, checksum = _prefix(data[: _PREFIX.size])
    body = data[_PREFIX.size :]
    if body.size != header_nbytes + frames_nbytes:
        raise FrameError(
            f"a file of {data.size} bytes has not the {header_nbytes + frames_nbytes} that it says"
        )
    if _cpu.checksum(body) != checksum:
        raise FrameError("a file's checksum does not match: it is damaged")
    return header_of(data)


def header_of(data: np.ndarray) -> dict[str, Any]:
    """The header of a file's bytes, which are sound."""
    nbytes, *_ = _prefix(data[: _PREFIX.size])
    return _parsed(data[_PREFIX.size : _PREFIX.size + nbytes].tobytes(), nbytes)


def _prefix(data: np.ndarray) -> tuple[int, int, int]:
    if data.size < _PREFIX.size:
        raise FrameError(f"{data.size} bytes are no checkpoint")
    magic, version, header_nbytes, frames_nbytes, checksum, own = _PREFIX.unpack(
        data[: _PREFIX.size].tobytes()
    )
    if magic != MAGIC or own != _cpu.checksum(data[:28]):
        raise FrameError("the beginning of a checkpoint is damaged")
    if version != VERSION:
        raise FrameError(
            f"version {version} of a checkpoint is not {VERSION}, the one that this release reads"
        )
    return header_nbytes, frames_nbytes, checksum


def _parsed(data: bytes, nbytes: int) -> dict[str, Any]:
    try:
        if len(data) == nbytes:
            found: dict[str, Any] = json.loads(data)
            return found
    except ValueError:
        pass
    raise FrameError("the header of a checkpoint is damaged")


def decode(data: np.ndarray, bases: Mapping[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
    """The arrays of a file's bytes, which are sound, by name."""
    header = header_of(data)
    nbytes, *_ = _prefix(data[: _PREFIX.size])
    at, found = _PREFIX.size + nbytes, {}
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


def _dtype_name(dtype: np.dtype) -> Any:
    return "bfloat16" if dtype == dtypes.BFLOAT16 else np.lib.format.dtype_to_descr(dtype)


def _dtype(name: Any) -> np.dtype:
    if name == "bfloat16":
        return dtypes.BFLOAT16
    descr = [tuple(field) for field in name] if isinstance(name, list) else name
    return np.dtype(descr)
