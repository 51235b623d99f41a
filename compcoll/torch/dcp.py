"""torch.distributed.checkpoint with compressed files: a writer and a reader of its own.

Each item is a stream of frames (compcoll/frame.py) of up to 4 MiB. A frame's bytes are coded as numbers of
the type that compresses a sample best; its header has the type.
"""

from __future__ import annotations

import io
import os
from typing import IO, Any, cast

import numpy as np
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint._extension import ExtensionRegistry, StreamTransformExtension

from compcoll.codecs import codec, decode
from compcoll.core import dtypes
from compcoll.core.errors import FrameError
from compcoll.frame import HEADER_NBYTES, inspect

__all__ = ["Lossless", "Reader", "Writer"]

_BLOCK_NBYTES, _SAMPLE_NBYTES = 4 << 20, 32 << 10
_TYPES = [dtypes.BFLOAT16, *map(np.dtype, ("f4", "f8", "i8", "u1"))]


class Lossless(StreamTransformExtension):  # type: ignore[misc]
    """Extension of torch.distributed.checkpoint for `Writer` and `Reader`; lossless for all tensors."""

    @staticmethod
    def registry_name() -> str:
        return "stream.compcoll"

    @staticmethod
    def from_descriptor(version: str) -> Lossless:
        if version.partition(".")[0] != "1":
            raise ValueError(
                f"version {version} of a compressed stream is not 1, the one that this release reads"
            )
        return Lossless()

    def get_descriptor(self) -> str:
        return f"{self.registry_name()}/1"

    def transform_to(self, output: IO[bytes]) -> IO[bytes]:
        return cast(IO[bytes], _Encoding(output))

    def transform_from(self, input: IO[bytes]) -> IO[bytes]:
        return cast(IO[bytes], io.BufferedReader(_Decoding(input)))


class Writer(FileSystemWriter):  # type: ignore[misc]
    """A ``FileSystemWriter`` whose files are compressed, for ``save`` and ``async_save``.

    Parameters
    ----------
    path : path
        The checkpoint's folder.
    **kwargs
        See ``torch.distributed.checkpoint.FileSystemWriter``.
    """

    def __init__(self, path: str | os.PathLike, **kwargs: Any):
        super().__init__(path, _extensions=[Lossless()], **kwargs)


class Reader(FileSystemReader):  # type: ignore[misc]
    """A ``FileSystemReader`` of compressed files, and of files of torch's own writer.

    Parameters
    ----------
    path : path
        The checkpoint's folder.
    **kwargs
        See ``torch.distributed.checkpoint.FileSystemReader``.

    Raises
    ------
    FrameError
        When a tensor is loaded from a damaged file.
    """

    def __init__(self, path: str | os.PathLike, **kwargs: Any):
        registry = ExtensionRegistry()
        registry.register(Lossless)
        super().__init__(path, _extension_registry=registry, **kwargs)


class _Encoding(io.RawIOBase):
    def __init__(self, output: IO[bytes]):
        self._output, self._bytes = output, bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._bytes += view
        while len(self._bytes) >= _BLOCK_NBYTES:
            self._encode(_BLOCK_NBYTES)
        return view.nbytes

    def close(self) -> None:
        if not self.closed:
            for n in (
                len(self._bytes) // 8 * 8,
                len(self._bytes) % 8,
            ):  # whole elements of every type, then the rest
                if n:
                    self._encode(n)
            self._output.close()
        super().close()

    def _encode(self, n: int) -> None:
        block = np.frombuffer(bytes(self._bytes[:n]), np.uint8)
        del self._bytes[:n]
        self._output.write(codec("lossless").encode(block.view(_type_of(block))).tobytes())


class _Decoding(io.RawIOBase):
    def __init__(self, source: IO[bytes]):
        self._source, self._block = source, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        if not self._block:
            header = self._source.read(HEADER_NBYTES)
            if not header:
                return 0
            if len(header) < HEADER_NBYTES:
                raise FrameError(f"the stream ends within a frame's header, {len(header)} bytes of it")
            info = inspect(header, 1 << 62)
            frame = header + self._source.read(info.payload_nbytes)
            self._block = memoryview(decode(frame).reshape(-1).view(np.uint8))
        n = min(len(into), len(self._block))
        into[:n], self._block = self._block[:n], self._block[n:]
        return n


def _type_of(block: np.ndarray) -> np.dtype:
    """The type that compresses a block best, by a sample from its middle."""
    fitting = [dtype for dtype in _TYPES if block.size % dtype.itemsize == 0]
    begin = max(block.size - _SAMPLE_NBYTES, 0) // 2 // 64 * 64
    sample = block[begin : begin + min(_SAMPLE_NBYTES, block.size - begin)]
    return min(
        fitting, key=lambda dtype: codec("lossless").encode(sample[: sample.size // 8 * 8].view(dtype)).size
    )
