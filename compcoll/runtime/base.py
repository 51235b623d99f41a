"""The verbs that algorithms are written in, and the small scheduler that runs several at once.

An algorithm is a coroutine over ``encode``, ``decode``, ``decode_add``, ``send`` and ``recv``. It sees
blocks (things with a length that can be sliced) and frames (things with a ``bound``), and nothing of
MPI, NumPy, threads or streams.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Generator, Iterable
from typing import Any

__all__ = ["Future", "Runtime", "Task"]


class Future:
    """A result that comes later; awaited by any number of coroutines."""

    __slots__ = ("done", "value", "waiters")

    def __init__(self):
        self.done = False
        self.value: Any = None
        self.waiters: list[Task] = []

    def __await__(self) -> Generator[Future, None, Any]:
        if not self.done:
            yield self
        return self.value

    def set(self, value: Any = None) -> None:
        """Give the result; whoever waits goes on."""
        self.done, self.value = True, value
        for task in self.waiters:
            task.runtime.ready.append(task)
        self.waiters.clear()


class Task(Future):
    """A coroutine that runs beside others; awaiting it gives what it returns."""

    __slots__ = ("coroutine", "runtime")

    def __init__(self, coroutine: Coroutine, runtime: Runtime):
        super().__init__()
        self.coroutine, self.runtime = coroutine, runtime

    def step(self) -> None:
        """Run until the coroutine waits for something that is not there yet."""
        try:
            future = self.coroutine.send(None)
        except StopIteration as stop:
            self.set(stop.value)
        else:
            future.waiters.append(self)


class Runtime(ABC):
    """One rank's verbs within one collective call.

    No verb raises: the first error is kept in ``error``, what depends on it becomes a poisoned frame,
    and every rank that such a frame reaches fails as well, so that a collective always ends.

    Attributes
    ----------
    rank, size : int
    error : Exception or None
        What the call will raise when all its messages are through.
    """

    rank: int
    size: int

    def __init__(self):
        self.ready: deque[Task] = deque()
        self.running = 0
        self.error: Exception | None = None

    # -- the five verbs

    @abstractmethod
    async def encode(self, block, carried: float = 0.0, into=None):
        """A frame of the block; ``carried`` is the absolute error that its values already have.

        Where the codec can give the frame's values on the way, it overwrites ``into`` with them, which may be
        the block itself, and the frame is ``settled``; a block that is not given stays as it is.
        """

    @abstractmethod
    async def decode(self, frame, into) -> None:
        """Overwrite a block with the frame's values."""

    @abstractmethod
    async def decode_add(self, frame, into) -> None:
        """Add the frame's values to an accumulator."""

    @abstractmethod
    def send(self, frame, dest: int, tag: int = 0) -> Future:
        """Start to send; the future is done when the frame's memory is free again."""

    @abstractmethod
    def recv(self, source: int, like, tag: int = 0) -> Future:
        """Start to receive a frame of a block like ``like``; the future gives it.

        Messages between two ranks with equal tags arrive in the order in which they were sent.
        """

    # -- around them

    async def frames(self, chunks: list) -> AsyncIterator:
        """The frames of chunks, in their order."""
        for chunk in chunks:
            yield await self.encode(chunk)

    @abstractmethod
    async def add(self, frame, other, like):
        """The frame of the sum of two frames of a block like ``like``, without decoding where that can be."""

    @abstractmethod
    async def copy(self, block, into) -> None:
        """Overwrite a block with another one's values."""

    @abstractmethod
    def accumulator(self, block, into=None):
        """A copy of a block in which sums are formed, float32 for 16-bit floats; in ``into`` if that fits."""

    @abstractmethod
    async def round(self, accumulator, into, error: float) -> None:
        """Overwrite a block with an accumulator's values, rounded once; they have this absolute error."""

    async def rounded(self, accumulator, like):
        """An accumulator's values, in a block's type."""
        return accumulator

    @abstractmethod
    def n_chunks(self, block) -> int:
        """Into how many chunks a block is cut: a function of its length and type alone."""

    def chunks(self, block) -> list:
        """A block cut into its chunks; all ranks cut blocks of equal length alike."""
        n = self.n_chunks(block)
        step = -(-len(block) // n) if n else 0
        step = -(-step // 1024) * 1024  # whole blocks of every codec
        return [block[i : i + step] for i in range(0, len(block), step)] if step else []

    # -- running several at once

    def start(self, coroutine: Coroutine) -> Task:
        """Run a coroutine beside the others; the call ends only when it has."""
        task = Task(self._counted(coroutine), self)
        self.running += 1
        self.ready.append(task)
        return task

    async def _counted(self, coroutine: Coroutine):
        try:
            return await coroutine
        except Exception as error:
            self.fail(error)
        finally:
            self.running -= 1

    async def all(self, coroutines: Iterable[Coroutine], limit: int = 8) -> None:
        """Run coroutines in order, at most ``limit`` of them at a time."""
        window: deque[Task] = deque()
        for coroutine in coroutines:
            window.append(self.start(coroutine))
            if len(window) >= limit:
                await window.popleft()
        while window:
            await window.popleft()

    def fail(self, error: Exception) -> None:
        """Keep the first error; the call raises it at its end."""
        if self.error is None:
            self.error = error
