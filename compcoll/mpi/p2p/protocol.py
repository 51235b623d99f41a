"""The first message of a compressed one: a header, the first chunk's frame, and padding.

====== ===== ===============================================================================
offset bytes field
====== ===== ===============================================================================
0      8     elements of the whole message
8      4     elements of a chunk; 0 where the first one is all there is, however large
12     4     bytes of an element
16     4     tag of the second chunk on the private communicator; each further one has the next
20     4     serial number of the message, by which its notice is known
24     4     bytes of the frame; 0 where the sender could not encode its values
28     4     checksum of the 28 bytes before it
32           the frame
====== ===== ===============================================================================

The padding gives first messages lengths that few others have, none of them shorter than `LEAST`, and only
those of single bytes, such as pickled objects, as these lengths are odd. A receive looks at the header of
any message of such a length, and a probe looks for its notice.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from math import prod
from time import perf_counter
from typing import Any

import numpy as np
from mpi4py import MPI

from compcoll.core import _cpu
from compcoll.core.errors import FrameError
from compcoll.frame import HEADER_NBYTES, FrameInfo, inspect
from compcoll.report import Stats

__all__ = [
    "LARGEST_CHUNK",
    "LEAST",
    "ROOM",
    "MessageStats",
    "ReceivedMessage",
    "looks_compressed",
    "pack_header",
    "serial_of",
    "split_first",
]

_HEADER = struct.Struct("<QIIIIII")
_CHECKED = _HEADER.size - 4
#: The least length of a first message, and what any leaves when divided by `_UNIT`.
LEAST, _UNIT, _REST = 1024, 128, 77
#: First chunks have so many bytes at most, so that they fit a nonblocking receive's scratch memory, however
#: small its buffer; and so many where others follow. Such a message every MPI sends at once, and both sides
#: know of each other's chunks before either waits for one.
LARGEST_CHUNK, OPENING_CHUNK = 1 << 20, 8 << 10
#: A first message may be larger than its chunk by this much.
ROOM = _HEADER.size + HEADER_NBYTES + LEAST + _UNIT


def split_first(block: Any, step: int) -> tuple[Any, Any]:
    """The first chunk of a message, all of it where one of ``step`` elements is enough, and the rest."""
    is_whole = not step or len(block) <= min(step, LARGEST_CHUNK // block.itemsize)
    first = len(block) if is_whole else min(step, OPENING_CHUNK // block.itemsize)
    return block[:first], block[first:]


def looks_compressed(status: MPI.Status) -> bool:
    """Whether a message that a probe found has the length of a first message."""
    nbytes = status.Get_count(MPI.BYTE)
    return nbytes % _UNIT == _REST and nbytes >= LEAST


def pack_header(block: Any, step: int, stream: int, serial: int, frame: np.ndarray) -> np.ndarray:
    """The first message of a block whose first chunk is this frame."""
    end = _HEADER.size + frame.size
    message = np.empty(max(end, LEAST) + (_REST - max(end, LEAST)) % _UNIT, np.uint8)
    _HEADER.pack_into(message.data, 0, len(block), step, block.itemsize, stream, serial, frame.size, 0)
    message[_CHECKED : _HEADER.size].view("<u4")[0] = _cpu.checksum(message[:_CHECKED])
    message[_HEADER.size : end] = frame
    message[end:] = 0
    return message


def serial_of(data: np.ndarray) -> int:
    """The serial number in a header."""
    serial: int = _HEADER.unpack_from(data.data)[4]
    return serial


class ReceivedMessage:
    """A message that MPI has handed over: the first of a compressed one, or plain bytes after all.

    Attributes
    ----------
    data : numpy.ndarray
        The bytes that came.
    source, tag : int
    is_compressed : bool
    info : FrameInfo or None
        The first chunk's header; None where that is damaged, or there is none.
    n, step, itemsize, stream, serial : int
        Further fields of the header.
    """

    def __init__(self, data: np.ndarray, source: int, tag: int):
        self.data, self.source, self.tag = data, source, tag
        self.info: FrameInfo | None = None
        self.n, self.step, self.itemsize, self.stream, self.serial = data.size, 1, 1, 0, 0
        self.is_compressed = data.size % 2 == 1 and data.size >= _HEADER.size and self._is_sound()
        if self.is_compressed:
            fields = _HEADER.unpack_from(data.data)
            self.n, self.step, self.itemsize, self.stream, self.serial, self._frame_nbytes, _ = fields
            with suppress(FrameError):
                self.info = inspect(self.frame)

    def _is_sound(self) -> bool:
        expected = int(self.data[_CHECKED : _HEADER.size].view("<u4")[0])
        return _cpu.checksum(self.data[:_CHECKED]) == expected

    @property
    def frame(self) -> np.ndarray:
        """The first chunk's frame."""
        return self.data[_HEADER.size :][: self._frame_nbytes]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole message, uncompressed."""
        return self.n * self.itemsize

    @property
    def dtype(self) -> np.dtype | None:
        """The elements' type; None where the frame cannot say."""
        fits = self.info is not None and self.info.dtype.itemsize == self.itemsize
        return self.info.dtype if fits else None  # type: ignore[union-attr]

    @property
    def inner(self) -> tuple[int, ...]:
        """The last dimensions of the whole message's shape; empty where it has none that can be."""
        inner = self.info.shape[1:] if self.dtype is not None and self.info is not None else ()
        return inner if inner and 0 < prod(inner) <= self.n else ()

    def problem(self, itemsize: int) -> Exception | None:
        """An error where the message is damaged, or was never encoded, as one of elements of this size."""
        damaged = FrameError(f"the message of {self.nbytes} bytes from rank {self.source} is damaged")
        if not self.is_compressed:
            return damaged if self.nbytes % 2 and itemsize > 1 else None
        if self.dtype is not None:
            return None
        if not self._frame_nbytes:
            return FrameError("another rank met an error before it could send this block")
        return damaged

    def fill(self, status: MPI.Status | None) -> None:
        """Say in a status what MPI would have said of the uncompressed message."""
        if status is not None:
            status.source, status.tag, status.error = self.source, self.tag, MPI.SUCCESS
            status.Set_elements(MPI.BYTE, self.nbytes)


class MessageStats(Stats):
    """Sums over the parts of a message, and the time since its beginning."""

    def __init__(self) -> None:
        super().__init__()
        self._start = perf_counter()

    def add_first(self, raw_nbytes: int, wire_nbytes: int, frame: np.ndarray) -> None:
        """Add a first message."""
        self.raw_nbytes += raw_nbytes
        self.wire_nbytes += wire_nbytes
        self.messages += 1
        if frame.size:
            info = inspect(frame)
            self.codecs[info.codec] = self.codecs.get(info.codec, 0) + 1
            ndim = len(info.shape)
            self.dimensions[ndim] = self.dimensions.get(ndim, 0) + 1
            self.fallbacks += info.fallback
            self.add_bound(info.bound)

    def end(self) -> None:
        """Note the time of the end."""
        self.stages["total"] = perf_counter() - self._start
