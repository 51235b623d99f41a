"""Compressed messages: an envelope, which is the beginning, and the chunks that follow it."""

from __future__ import annotations

import struct
from contextlib import suppress
from math import prod
from typing import Any

import numpy as np
from mpi4py import MPI

from compcoll.core import _cpu
from compcoll.core.errors import FrameError
from compcoll.frame import HEADER_NBYTES, FrameInfo, inspect
from compcoll.mpi.buffers import Message, parse

__all__ = ["LARGEST_CHUNK", "ROOM", "Taken", "cut", "may_be_envelope", "seal"]

#: Elements in all, elements of a chunk, bytes of an element, tag of the first of the other chunks; then the
#: checksum of these 20 bytes, and the first chunk's frame.
_OPENING = struct.Struct("<QIII")
_FRAME = _OPENING.size + 4
#: An envelope may be larger than the message that it opens by this much.
ROOM = _FRAME + HEADER_NBYTES + 1
#: First chunks are of this size at most, so that they fit a nonblocking receive's scratch memory, however
#: small its buffer.
LARGEST_CHUNK = 1 << 20


def cut(block: Any, step: int) -> tuple[Any, Any]:
    """The first chunk of a message, of ``step`` elements where that is not too much, and the rest."""
    first = min(step, LARGEST_CHUNK // block.itemsize)
    return block[:first], block[first:]


def seal(block: Any, step: int, stream: int, frame: np.ndarray) -> np.ndarray:
    """The envelope of a message whose first chunk is this frame."""
    end = _FRAME + frame.size
    envelope = np.empty(end + (1 - end % 2), np.uint8)
    _OPENING.pack_into(envelope.data, 0, len(block), step, block.itemsize, stream)
    envelope[_OPENING.size : _FRAME].view("<u4")[0] = _cpu.checksum(envelope[: _OPENING.size])
    envelope[_FRAME:end] = frame
    return envelope


def may_be_envelope(status: MPI.Status) -> bool:
    """Whether a message that a probe found has the size of an envelope."""
    nbytes = status.Get_count(MPI.BYTE)
    return nbytes % 2 == 1 and nbytes >= _FRAME


class Taken:
    """A message that MPI has handed over: an envelope, or an odd number of plain bytes after all.

    Attributes
    ----------
    data : numpy.ndarray
        The bytes that came.
    source, tag : int
    info : FrameInfo or None
        The first chunk's header; None where that is damaged, or there is none.
    n, step, itemsize, stream : int
        What the envelope says: see `_OPENING`.
    """

    __slots__ = ("data", "info", "is_envelope", "itemsize", "n", "source", "step", "stream", "tag")

    def __init__(self, data: np.ndarray, source: int, tag: int):
        self.data, self.source, self.tag = data, source, tag
        self.info: FrameInfo | None = None
        self.n, self.step, self.itemsize, self.stream = data.size, 1, 1, 0
        self.is_envelope = data.size % 2 == 1 and data.size >= _FRAME and self._sound()
        if self.is_envelope:
            self.n, self.step, self.itemsize, self.stream = _OPENING.unpack_from(data.data)
            self.step = max(self.step, 1)
            with suppress(FrameError):
                self.info = inspect(self.frame)

    def _sound(self) -> bool:
        (expected,) = self.data[_OPENING.size : _FRAME].view("<u4")
        return _cpu.checksum(self.data[: _OPENING.size]) == expected

    @classmethod
    def of(cls, matched: MPI.Message, status: MPI.Status) -> Taken:
        """Open what a matched probe found."""
        data = np.empty(status.Get_count(MPI.BYTE), np.uint8)
        source, tag = status.source, status.tag
        matched.Recv([data, MPI.BYTE])
        return cls(data, source, tag)

    @property
    def frame(self) -> np.ndarray:
        """The first chunk's frame."""
        return self.data[_FRAME:]

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

    @property
    def problem(self) -> Exception | None:
        """What is wrong with the beginning; an empty frame says that the sender met an error."""
        if not self.is_envelope or self.dtype is not None:
            return None
        if self.frame.size <= 1:
            return FrameError("another rank met an error before it could send this block")
        return FrameError(f"the message of {self.nbytes} bytes from rank {self.source} is damaged")

    def scratch(self) -> Message:
        """Memory for the whole message."""
        return parse(np.empty(self.nbytes, np.uint8))  # type: ignore[return-value]

    def fill(self, status: MPI.Status | None) -> None:
        """Say in a status what MPI would have said of the uncompressed message."""
        if status is not None:
            status.source, status.tag, status.error = self.source, self.tag, MPI.SUCCESS
            status.Set_elements(MPI.BYTE, self.nbytes)
