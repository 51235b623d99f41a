"""Scratch buffers that are used again: fresh pages cost more than the codec that writes to them."""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock

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

    They come from ``allocate``, which makes uint8 arrays of so many bytes. Where that is too many, the class
    goes first that was not asked for longest.
    """

    def __init__(
        self,
        keep_nbytes: int = 256 << 20,
        allocate: Callable[[int], np.ndarray] = lambda n: np.empty(n, np.uint8),
    ):
        self.keep_nbytes, self._allocate = keep_nbytes, allocate
        self.idle_nbytes = 0
        self._idle: dict[int, list[np.ndarray]] = {}
        self._lock = RLock()  # a garbage collection can put while the same thread gets

    def get(self, nbytes: int) -> np.ndarray:
        """A uint8 array of at least ``nbytes``, contents undefined; goes back with its last view."""
        size = _size_class(nbytes)
        with self._lock:
            idle = self._idle.pop(size, [])
            self._idle[size] = idle  # now the last one to go
            data = idle.pop() if idle else None
            self.idle_nbytes -= size if data is not None else 0
        return np.asarray(_Lease(self, self._allocate(size) if data is None else data))

    def _put(self, data: np.ndarray) -> None:
        with self._lock:
            self._idle.setdefault(data.size, []).append(data)
            self.idle_nbytes += data.size
            while self.idle_nbytes > self.keep_nbytes:
                oldest = next(size for size, idle in self._idle.items() if idle)
                self._idle[oldest].pop()
                self.idle_nbytes -= oldest


def _size_class(nbytes: int) -> int:
    size = 1 << max(nbytes - 1, 4095).bit_length()
    return size * 3 // 4 if nbytes <= size * 3 // 4 else size
