"""Frames: the bytes on the wire. A header of 80 bytes (csrc/engine/frame.cpp), then the payload.

All fields are little-endian.

====== ===== =========================================================================
offset bytes field
====== ===== =========================================================================
0      4     magic ``CCF1``
4      1     version, 1
5      1     flags: 1 = the payload has a checksum; 2 = lossless instead of a lossy codec
6      1     dtype code (csrc/abi.h)
7      1     number of dimensions, 0 to 3
8      8     codec name, ASCII, zero-padded
16     16    the codec's own two words
32     24    shape, three 64-bit words, C order; unused ones are 1
56     8     payload bytes
64     8     float64: largest absolute error of any value since the data's owner encoded it, of complex
             numbers ``|x - x'|``; 0 if exact, NaN if it is not known
72     4     checksum of the payload (csrc/checksum.h), 0 without one
76     4     checksum of the 76 bytes before it
====== ===== =========================================================================

A frame is never larger than the raw array plus its header: data that do not shrink are sent as ``raw``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from compcoll.core import _cpu

__all__ = ["HEADER_NBYTES", "SLACK", "FrameInfo", "as_bytes", "header_bytes", "inspect", "pack_header"]

VERSION = 1
HEADER_NBYTES = 80
#: Bytes beyond the raw size in an encoder's output, for streams that end past it and are then dropped.
SLACK = 64


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
        Size of the payload, and its offset in the frame.
    bound : float
        Largest absolute error of any value, of complex numbers ``|x - x'|``; 0 if exact, NaN if unknown.
    fallback : bool
        True if a lossy codec was requested and the payload is lossless instead.
    checksum : int or None
        The payload's 32-bit checksum, None if the frame has none.
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
    """Write a header before the payload that is already in ``frame``, and compute the payload's checksum.

    Parameters
    ----------
    frame : numpy.ndarray
        uint8, of at least ``info.frame_nbytes`` bytes.
    info : FrameInfo
        With ``checksum`` None for a payload without one.
    """
    _cpu.write_header(info, frame)


def header_bytes(info: FrameInfo) -> bytes:
    """A header without its own checksum."""
    header = np.empty(HEADER_NBYTES, np.uint8)
    _cpu.write_header(info, header, complete=False)
    return header.tobytes()


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
        If the header is damaged, or the frame is shorter than the header says. The payload is not checked.
    """
    return FrameInfo(*_cpu.read_header(as_bytes(frame), available))


def as_bytes(data) -> np.ndarray:
    """View any contiguous buffer as a flat uint8 array."""
    if isinstance(data, np.ndarray):
        if not data.flags.c_contiguous:
            raise ValueError("a frame has to be contiguous")
        return data.reshape(-1).view(np.uint8)
    return np.frombuffer(data, np.uint8)
