"""Scratch buffers that are used again: fresh pages cost more than the codec that writes to them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import numpy as np

__all__ = ["Pool"]


class _Lease:
    """The owner of a lent buffer's memory, as NumPy sees it: gone with the last view of it."""

    __slots__ = ("__array_interface__", "data", "pool")

    def __init__(self, pool: Pool, data: np.ndarray):
        self.pool, self.data = pool, data
        self.__array_interface__ = data.__array_interface__

    def __del__(self):
        self.pool._put(self.data)


class Pool:
    """Buffers by size class (powers of two and the halves between), at most ``keep_nbytes`` idle ones.

    They come from ``allocate``, which makes uint8 arrays of so many bytes.

    ``list.append`` and ``list.pop`` are atomic, so threads share a pool without a lock.
    """

    def __init__(
        self,
        keep_nbytes: int = 256 << 20,
        allocate: Callable[[int], np.ndarray] = lambda n: np.empty(n, np.uint8),
    ):
        self.keep_nbytes, self._allocate = keep_nbytes, allocate
        self.idle_nbytes = 0
        self._idle: defaultdict[int, list[np.ndarray]] = defaultdict(list)

    def get(self, nbytes: int) -> np.ndarray:
        """A uint8 array of at least ``nbytes``, contents undefined; goes back with its last view."""
        size = _size_class(nbytes)
        try:
            data = self._idle[size].pop()
            self.idle_nbytes -= size
        except IndexError:
            data = self._allocate(size)
        return np.asarray(_Lease(self, data))

    def _put(self, data: np.ndarray) -> None:
        if self.idle_nbytes + data.size <= self.keep_nbytes:
            self.idle_nbytes += data.size
            self._idle[data.size].append(data)


def _size_class(nbytes: int) -> int:
    size = 1 << max(nbytes - 1, 4095).bit_length()
    return size * 3 // 4 if nbytes <= size * 3 // 4 else size
