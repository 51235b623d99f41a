"""The operations on host memory, for what a device cannot do."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from compcoll import frame as frames
from compcoll.codecs.base import SLACK, Codec
from compcoll.codecs.decoding import accumulator_dtype, add, decode_add, decode_into
from compcoll.codecs.registry import of_frame
from compcoll.core.errors import FrameError
from compcoll.engine import rounding
from compcoll.engine.device.pool import Pool

__all__ = ["Frame", "HostWork"]


class Frame:
    """A frame in scratch memory; one without ``info`` is poisoned: something it depends on failed.

    ``data`` is a uint8 array, or memory of a device.
    ``settled``: its values stand already where encoding was asked to put them.
    """

    __slots__ = ("data", "info", "settled")

    def __init__(self, data: Any, info: frames.FrameInfo | None, settled: bool = False):
        self.data, self.info, self.settled = data, info, settled

    @property
    def bound(self) -> float:
        """Largest absolute error of its values."""
        return self.info.bound if self.info else 0.0

    @property
    def exact(self) -> bool:
        """Whether it decodes to the bits that were encoded; a bound of 0 leaves the sign of a zero open."""
        return self.info is None or of_frame(self.info.codec).lossless


POISON = Frame(np.empty(0, np.uint8), None)


class HostWork:
    """Encoding and decoding of one call, without a word about when and where it runs.

    Attributes
    ----------
    bound : float
        Largest absolute error of any value that was decoded, NaN where it is not known.
    used : Counter
        Frames encoded, by the codec that they name.
    dimensions : Counter
        And by the number of dimensions of their blocks.
    fallbacks : int
        Frames that went lossless because their lossy codec could not carry them.
    """

    def __init__(self, codec: Codec, pool: Pool, checksum: bool = True):
        self.codec, self.pool, self.checksum = codec, pool, checksum
        self.bound = 0.0
        self.used: Counter[str] = Counter()
        self.dimensions: Counter[int] = Counter()
        self.fallbacks = 0

    def encode(self, block: np.ndarray, carried: float, into: np.ndarray | None = None) -> Frame:
        out = self.pool.get(frames.HEADER_NBYTES + block.nbytes + SLACK)
        if into is not None and (into.dtype != block.dtype or into.size != block.size):
            into = None
        data, settled = self.codec.reconstruct_into(block, out, into, carried, self.checksum)
        return Frame(data, frames.inspect(data), settled)

    def count(self, frame: Frame) -> None:
        """Note which codec an encoded frame really names."""
        if frame.info:
            self.used[frame.info.codec] += 1
            self.dimensions[len(frame.info.shape)] += 1
            self.fallbacks += frame.info.fallback

    def received(self, data: np.ndarray) -> Frame:
        """A frame of arrived bytes; FrameError where they are none."""
        return Frame(data, frames.inspect(data)) if data.size else POISON

    def decode(self, frame: Frame, into: np.ndarray) -> float:
        info = self._checked(frame, into)
        if info.dtype == into.dtype:
            decode_into(frame.data, info, into)
        else:  # 16-bit floats into an accumulator
            into[...] = 0
            decode_add(frame.data, into, scratch=self.pool.get(info.nbytes))
        return info.bound

    def decode_add(self, frame: Frame, into: np.ndarray) -> float:
        """Add the frame's values; the error that they and the additions bring."""
        info = self._checked(frame, into, accumulates=True)
        decode_add(frame.data, into, scratch=self.pool.get(info.nbytes))
        # The sums are in the caches now.
        return info.bound + rounding.of_addition(into.dtype, rounding.largest(into))

    def add(self, frame: Frame, other: Frame, like: np.ndarray) -> Frame:
        """The frame of a sum; where its codec cannot form it, the values are added and encoded again."""
        info, _ = self._checked(frame, like), self._checked(other, like)
        out = self.pool.get(frames.HEADER_NBYTES + info.nbytes + SLACK)
        data = add(frame.data, other.data, out)
        if data is not None:
            return Frame(data, frames.inspect(data))
        total = self.accumulator(like)
        error = self.decode(frame, total) + self.decode_add(other, total)
        if total.dtype != like.dtype:
            narrow = self.pool.get(like.nbytes)[: like.nbytes].view(like.dtype)
            error += self.copy(narrow, total)
            total = narrow
        return self.encode(total, error)

    def copy(self, into, block) -> float:
        """Overwrite a block; the error of rounding where its type is narrower."""
        with np.errstate(over="ignore"):  # sums overflow as they do in the type
            np.copyto(into, block, "same_kind")
        if into.dtype == block.dtype:
            return 0.0
        return rounding.of_result(into.dtype, rounding.largest(into))

    def is_same(self, block, into) -> bool:
        """Whether two blocks are the same memory."""
        return block is into or block.ctypes.data == into.ctypes.data

    def note_bound(self, bound: float) -> None:
        """The result has a value with this absolute error."""
        if bound != bound or bound > self.bound:
            self.bound = bound

    def accumulator(self, block: np.ndarray, into: np.ndarray | None = None) -> np.ndarray:
        dtype = accumulator_dtype(block.dtype)
        if into is None or into.dtype != dtype:
            into = self.pool.get(block.size * dtype.itemsize)[: block.size * dtype.itemsize].view(dtype)
        np.copyto(into, block)
        return into

    @staticmethod
    def _checked(frame: Frame, into, accumulates: bool = False) -> frames.FrameInfo:
        info = frame.info
        if info is None:
            raise FrameError("another rank met an error before it could send this block")
        wide = accumulator_dtype(info.dtype)
        fits = into.dtype == wide or (into.dtype == info.dtype and not accumulates)
        if info.size != into.size or not fits:
            raise FrameError(
                f"a frame of {info.size} {info.dtype} came for a block of {into.size} {into.dtype}: "
                "the ranks' counts or types differ"
            )
        return info
