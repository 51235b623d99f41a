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
from dataclasses import dataclass

import numpy as np

from compcoll.core import _cpu, dtypes
from compcoll.core.errors import FrameError

__all__ = ["HEADER_NBYTES", "FrameInfo", "inspect", "pack_header", "verify"]

MAGIC = b"CCF1"
VERSION = 1
CHECKSUM = 1
FALLBACK = 2
_HEADER = struct.Struct("<4sBBBB8sQQQQQQdII")
HEADER_NBYTES = _HEADER.size
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
    nbytes : int
        Bytes of the decoded array.
    payload_nbytes, payload_offset : int
        Where the payload lies in the frame, in bytes.
    checksum : int or None
        The payload's 32-bit checksum, None where the frame has none.
    bound : float
        Largest absolute error of any value, 0 if exact, NaN if unknown.
    params : tuple of int
        The codec's own two 64-bit words.
    fallback : bool
        Whether a lossy codec was asked for and the payload is lossless in its place.
    """

    codec: str
    dtype: np.dtype
    shape: tuple[int, ...]
    nbytes: int
    payload_nbytes: int
    payload_offset: int
    checksum: int | None
    bound: float
    params: tuple[int, int]
    fallback: bool

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def frame_nbytes(self) -> int:
        """Bytes of the whole frame."""
        return self.payload_offset + self.payload_nbytes


def pack_header(
    frame: np.ndarray,
    codec: str,
    dtype: np.dtype,
    shape: tuple[int, ...],
    params: tuple[int, int],
    payload_nbytes: int,
    bound: float,
    fallback: bool = False,
    checksum: bool = True,
) -> None:
    """Write the header in front of the payload that is already in ``frame``."""
    end = HEADER_NBYTES + payload_nbytes
    value = _cpu.checksum(frame[HEADER_NBYTES:end]) if checksum else 0
    frame[:HEADER_NBYTES] = np.frombuffer(
        header_bytes(codec, dtype, shape, params, bound, checksum, fallback, payload_nbytes, value), np.uint8
    )
    frame[76:80].view("<u4")[0] = _cpu.checksum(frame[:76])


def header_bytes(
    codec: str,
    dtype: np.dtype,
    shape: tuple[int, ...],
    params: tuple[int, int],
    bound: float,
    checksum: bool,
    fallback: bool = False,
    payload_nbytes: int = 0,
    value: int = 0,
) -> bytes:
    """A header without its own checksum."""
    flags = (CHECKSUM if checksum else 0) | (FALLBACK if fallback else 0)
    dims = (*shape, 1, 1, 1)[:3]
    return _HEADER.pack(
        MAGIC,
        VERSION,
        flags,
        dtypes.code_of(dtype),
        len(shape),
        codec.encode("ascii"),
        *params,
        *dims,
        payload_nbytes,
        bound,
        value,
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
    nbytes = math.prod(dims) * dtype.itemsize
    if payload_nbytes > nbytes:
        raise FrameError(f"payload of {payload_nbytes} bytes is larger than the array's {nbytes}")
    available = data.size if available is None else available
    if available < HEADER_NBYTES + payload_nbytes:
        raise FrameError(f"truncated: {available} of {HEADER_NBYTES + payload_nbytes} bytes")
    if not bound >= 0 and not math.isnan(bound):
        raise FrameError(f"error bound {bound} is negative")
    return FrameInfo(
        codec,
        dtype,
        tuple(dims[:ndim]),
        nbytes,
        payload_nbytes,
        HEADER_NBYTES,
        checksum if flags & CHECKSUM else None,
        bound,
        (p0, p1),
        bool(flags & FALLBACK),
    )


def verify(frame: np.ndarray, info: FrameInfo) -> np.ndarray:
    """The payload of a frame, after its checksum was compared; FrameError where it differs."""
    payload = frame[info.payload_offset : info.frame_nbytes]
    if info.checksum is not None and _cpu.checksum(payload) != info.checksum:
        raise FrameError(f"the payload's checksum is not {info.checksum:#010x}: the payload is damaged")
    return payload


def as_bytes(data) -> np.ndarray:
    """Any contiguous buffer as a flat uint8 array, without a copy."""
    if isinstance(data, np.ndarray):
        if not data.flags.c_contiguous:
            raise ValueError("a frame has to be contiguous")
        return data.reshape(-1).view(np.uint8)
    return np.frombuffer(data, np.uint8)
