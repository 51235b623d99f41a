"""Pinned host memory, which is kept for whoever needs as much again."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["PinnedPool"]

#: Sizes are multiples of this; smaller pieces are frequent, and each is as large as this.
_UNIT = 4096
#: Idle memory that is kept when more has to be allocated.
KEPT_NBYTES = 512 << 20


class _Lent(np.ndarray):
    """The whole of a piece of memory, which goes back to its pool with the last array that shares it."""

    _pool: PinnedPool | None = None
    _memory: Any = None

    def __del__(self) -> None:
        if self._pool is not None:
            self._pool._returned.append(self._memory)


class PinnedPool:
    """Pinned memory in pieces of nearly the size that was asked for.

    CuPy's own pool gives a piece out again for the very same size alone, and never frees one.

    Parameters
    ----------
    allocate : callable
        Makes so many bytes of pinned memory, an object with the buffer interface that is no array: views
        would keep an array alone.
    """

    def __init__(self, allocate: Callable[[int], Any]):
        self._allocate, self._lock = allocate, threading.Lock()
        self._idle: dict[int, list[Any]] = {}  # by size
        self._idle_nbytes = 0
        self._returned: deque[Any] = deque()  # appended to by destructors, which must not take the lock

    def take(self, nbytes: int) -> np.ndarray:
        """Memory of undefined contents, uint8."""
        size = max(-(-nbytes // _UNIT), 1) * _UNIT
        with self._lock:
            memory = self._reuse(size)
        if memory is None:
            memory = self._allocate(size), size
        lent = np.ndarray.__new__(_Lent, (size,), np.uint8, memory[0])
        lent._pool, lent._memory = self, memory
        return lent.view(np.ndarray)[:nbytes]

    def _reuse(self, size: int) -> tuple[Any, int] | None:
        """An idle piece, at most a quarter larger; None, and less memory kept, where there is none."""
        while self._returned:
            memory = self._returned.popleft()
            self._idle.setdefault(memory[1], []).append(memory)
            self._idle_nbytes += memory[1]
        if size not in self._idle:
            fitting = [other for other in self._idle if size < other <= size + size // 4]
            if not fitting:
                self._free(KEPT_NBYTES)
                return None
            size = min(fitting)
        memory = self._idle[size].pop()
        if not self._idle[size]:
            del self._idle[size]
        self._idle_nbytes -= size
        return memory

    def _free(self, kept: int) -> None:
        """Free idle memory, that of the size longest idle first, until so many bytes are left."""
        for size in list(self._idle):
            while self._idle[size] and self._idle_nbytes > kept:
                self._idle[size].pop()
                self._idle_nbytes -= size
            if not self._idle[size]:
                del self._idle[size]
