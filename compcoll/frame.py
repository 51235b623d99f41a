"""Frames: the bytes on the wire. A header of 80 bytes, then the payload.

All fields are little-endian.

====== ===== =========================================================================
offset bytes field
====== ===== =========================================================================
0      4     magic ``CCF1``
4      1     version, 1
5      1     flags: 1 = the payload has a checksum; 2 = lossless in place of a lossy codec
6      1     dtype code (csrc/abi.h)
7      1     number of dimensions, 0 to 3
8      8     codec name, ASCII, zero-padded
16     16    the codec's own two words
32     24    shape, three 64-bit words, C order; unused ones are 1
56     8     payload bytes
64     8     float64: largest absolute error of any value since the data's owner encoded it; 0 if
             exact, NaN where it is not known
72     4     checksum of the payload (csrc/checksum.h), 0 without one
76     4     checksum of the 76 bytes before it
====== ===== =========================================================================

A frame is never larger than the raw array plus its header: what does not shrink is sent as ``raw``.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from compcoll.core import _cpu, dtypes
from compcoll.core.errors import FrameError

__all__ = ["HEADER_NBYTES", "SLACK", "FrameInfo", "header_bytes", "inspect", "pack_header", "verify"]

MAGIC = b"CCF1"
VERSION = 1
CHECKSUM = 1
FALLBACK = 2
_HEADER = struct.Struct("<4sBBBB8sQQQQQQdII")
HEADER_NBYTES = _HEADER.size
#: Room behind the raw size in an encoder's output, for streams that end past it and are then dropped.
SLACK = 64
MAX_NBYTES = 2**63 - 1


@dataclass(frozen=True, slots=True)
class FrameInfo:
    """The header of a frame.

    Attributes
    ----------
    codec : str
        Name of the codec of the payload.
    dtype : numpy.dtype
    shape : tuple of int
    params : tuple of int
        The codec's own two 64-bit words.
    payload_nbytes, payload_offset : int
        Where the payload lies in the frame, in bytes.
    bound : float
        Largest absolute error of any value, 0 if exact, NaN if unknown.
    fallback : bool
        Whether a lossy codec was asked for and the payload is lossless in its place.
    checksum : int or None
        The payload's 32-bit checksum, None where the frame has none.
    nbytes : int
        Bytes of the decoded array.
    """

    codec: str
    dtype: np.dtype
    shape: tuple[int, ...]
    params: tuple[int, int]
    payload_nbytes: int = 0
    bound: float = 0.0
    fallback: bool = False
    checksum: int | None = 0

    payload_offset: ClassVar[int] = HEADER_NBYTES

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def frame_nbytes(self) -> int:
        """Bytes of the whole frame."""
        return HEADER_NBYTES + self.payload_nbytes


def pack_header(frame: np.ndarray, info: FrameInfo) -> None:
    """Write a header in front of the payload that is already in ``frame``, whose checksum is formed.

    Parameters
    ----------
    frame : numpy.ndarray
        uint8, of at least ``info.frame_nbytes`` bytes.
    info : FrameInfo
        With ``checksum`` None for a payload without one.
    """
    if info.checksum is not None:
        info = replace(info, checksum=_cpu.checksum(frame[HEADER_NBYTES : info.frame_nbytes]))
    frame[:HEADER_NBYTES] = np.frombuffer(header_bytes(info), np.uint8)
    frame[76:80].view("<u4")[0] = _cpu.checksum(frame[:76])


def header_bytes(info: FrameInfo) -> bytes:
    """A header without its own checksum."""
    return _HEADER.pack(
        MAGIC,
        VERSION,
        (0 if info.checksum is None else CHECKSUM) | (FALLBACK if info.fallback else 0),
        dtypes.code_of(info.dtype),
        len(info.shape),
        info.codec.encode("ascii"),
        *info.params,
        *(*info.shape, 1, 1, 1)[:3],
        info.payload_nbytes,
        info.bound,
        info.checksum or 0,
        0,
    )


def inspect(frame, available: int | None = None) -> FrameInfo:
    """Read the header of a frame.

    Parameters
    ----------
    frame : array or bytes-like
        A frame as `Codec.encode` returns it, in host memory; bytes behind its end are ignored.
    available : int, optional
        Bytes of the whole frame, where only its header is given.

    Returns
    -------
    FrameInfo

    Raises
    ------
    FrameError
        Where the header is damaged or the frame is shorter than it says. The payload is not looked at.
    """
    data = as_bytes(frame)
    if data.size < HEADER_NBYTES:
        raise FrameError(f"{data.size} bytes are no frame: its header alone has {HEADER_NBYTES}")
    magic, version, flags, code, ndim, name, p0, p1, *rest = _HEADER.unpack_from(data.data)
    *dims, payload_nbytes, bound, checksum, own = rest
    if magic != MAGIC:
        raise FrameError(f"magic bytes are {magic!r}, not {MAGIC!r}")
    if own != _cpu.checksum(data[:76]):
        raise FrameError("the header's checksum does not match: the header is damaged")
    if version != VERSION:
        raise FrameError(f"frame version {version} is not {VERSION}, the one that this release reads")
    try:
        dtype, codec = dtypes.dtype_of(code), name.rstrip(b"\0").decode("ascii")
    except (KeyError, UnicodeDecodeError) as error:
        raise FrameError(f"unknown dtype or codec in the header: {error}") from None
    if ndim > 3 or any(d != 1 for d in dims[ndim:]):
        raise FrameError(f"{ndim} dimensions {dims} are not at most 3")
    # With 1 in place of 0: array libraries form this product too.
    if math.prod(max(d, 1) for d in dims) * dtype.itemsize > MAX_NBYTES:
        raise FrameError(f"{dims} {dtype} in bytes are more than {MAX_NBYTES}")
    shape, fallback = tuple(dims[:ndim]), bool(flags & FALLBACK)
    known = checksum if flags & CHECKSUM else None
    info = FrameInfo(codec, dtype, shape, (p0, p1), payload_nbytes, bound, fallback, known)
    if payload_nbytes > info.nbytes:
        raise FrameError(f"payload of {payload_nbytes} bytes is larger than the array's {info.nbytes}")
    available = data.size if available is None else available
    if available < info.frame_nbytes:
        raise FrameError(f"truncated: {available} of {info.frame_nbytes} bytes")
    if not bound >= 0 and not math.isnan(bound):
        raise FrameError(f"error bound {bound} is negative")
    return info


def verify(frame: np.ndarray, info: FrameInfo) -> np.ndarray:
    """Compare a payload's checksum; the payload, or FrameError where it differs."""
    payload = frame[HEADER_NBYTES : info.frame_nbytes]
    if info.checksum is not None and _cpu.checksum(payload) != info.checksum:
        raise FrameError(f"the payload's checksum is not {info.checksum:#010x}: the payload is damaged")
    return payload


def as_bytes(data) -> np.ndarray:
    """View any contiguous buffer as a flat uint8 array."""
    if isinstance(data, np.ndarray):
        if not data.flags.c_contiguous:
            raise ValueError("a frame has to be contiguous")
        return data.reshape(-1).view(np.uint8)
    return np.frombuffer(data, np.uint8)
