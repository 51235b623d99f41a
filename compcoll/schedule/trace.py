"""The tracing runtime: an algorithm runs once, every call returns at once, and the calls become a `Schedule`.

An operation depends on everything that its coroutine has awaited so far. Coroutines take turns as if every
operation took one step, so that operations of concurrent coroutines are interleaved.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from compcoll.schedule import planes
from compcoll.schedule.block import Block
from compcoll.schedule.chunks import WINDOW, chunk_step
from compcoll.schedule.graph import BLOCK, NONE, OP, SCRATCH, Kind, Schedule
from compcoll.schedule.runtime import Runtime

__all__ = ["Block", "DeadlockError", "Tracer", "trace"]

MOST_TAGS = 1 << 31


class DeadlockError(RuntimeError):
    """An algorithm waits for an event that no rank causes."""


class Awaited:
    """Result of an operation that completes later; awaiting it returns its value."""

    __slots__ = ("before", "done", "frontier", "value", "waiters")

    def __init__(self, before: frozenset[int], frontier: frozenset[int], value: Any = None):
        self.before, self.frontier, self.value = before, frontier, value
        self.done = False
        self.waiters: list[Task] = []

    def __await__(self) -> Generator[Awaited, None, Any]:
        yield self
        return self.value


class Task(Awaited):
    """A concurrent coroutine. ``frontier``: the last operations that it has awaited."""

    __slots__ = ("coroutine",)

    def __init__(self, coroutine: Coroutine, frontier: frozenset[int]):
        super().__init__(frontier, frontier)
        self.coroutine = coroutine

    def has_awaited(self, other: Awaited) -> None:
        """Make later operations depend on ``other``; its own dependencies are implied."""
        if other.before is self.frontier:
            self.frontier = other.frontier
        else:
            self.frontier = self.frontier - other.before | other.frontier


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of a call that its algorithm, or its schedule, depends on.

    Attributes
    ----------
    window : int
        Chunks of a message in flight at once.
    widens : bool
        True if sums are accumulated in a wider type.
    shaped : bool
        True if frames may have the shapes of their senders' blocks.
    owner_exact, nodes, inside_exact, n_tags
        See `Runtime`.
    """

    window: int = WINDOW
    widens: bool = False
    shaped: bool = False
    owner_exact: bool = False
    nodes: tuple[int, ...] = ()
    inside_exact: bool = True
    n_tags: int = MOST_TAGS


#: Fields of an `OP` besides its kind and blocks, with their values for operations without them.
_FIELDS = {"frame": NONE, "other": NONE, "sum": NONE, "peer": NONE, "tag": NONE, "idle": 0, "inside": 0}


class Tracer(Runtime):
    """A `Runtime` whose calls add operations to the schedule."""

    def __init__(self, rank: int, size: int, n_buffers: int, chunk: int, options: Options):
        self.rank, self.size, self.chunk = rank, size, chunk
        self.window, self.nodes, self.n_tags = options.window, options.nodes, options.n_tags
        self.owner_exact, self.inside_exact = options.owner_exact, options.inside_exact
        self._n_buffers, self._widens, self._shaped = n_buffers, options.widens, options.shaped
        self._ops: list[tuple[int, ...]] = []
        self._dependencies: list[frozenset[int]] = []
        self._blocks: dict[tuple[Any, ...], Block] = {}
        self._used: list[Block] = []
        self._scratch: list[tuple[int, bool]] = []
        self._n_frames = self._n_tags = 0
        self._last: dict[tuple[Kind, int, int], tuple[int, int]] = {}
        self._ready: deque[Task] = deque()
        self._issued: deque[Awaited] = deque()
        self._now: Task | None = None
        self._unfinished = 0

    # -- operations of `Runtime`

    def on_same_node(self, rank: int) -> bool:
        return bool(self.nodes) and self.nodes[rank] == self.nodes[self.rank]

    async def encode(self, block: Block, into: Block | None = None, inside: bool = False) -> int:
        frame = self._frame()
        keeps = into is None or self.owner_exact
        await self._issue(Kind.ENCODE, block=block, frame=frame, into=None if keeps else into, inside=inside)
        return frame

    async def write_decoded(self, frame: int, block: Block, into: Block, idle: bool = True) -> None:
        if self.owner_exact:
            await self.copy(block, into, idle=idle)
        else:
            await self._issue(Kind.WRITE_DECODED, block=block, frame=frame, into=into, idle=idle)

    async def decode(self, frame: int, into: Block) -> None:
        await self._issue(Kind.DECODE, block=into, frame=frame)

    async def decode_add(self, frame: int, into: Block) -> None:
        await self._issue(Kind.DECODE_ADD, block=into, frame=frame)

    async def add(self, frame: int, other: int, like: Block) -> int:
        result = self._frame()
        await self._issue(Kind.ADD, block=like, frame=frame, other=other, sum=result)
        return result

    async def copy(self, block: Block, into: Block, idle: bool = False) -> None:
        if block is not into:
            await self._issue(Kind.COPY, block=block, into=into, idle=idle)

    def accumulator(self, like: Block, into: Block | None = None) -> Block:
        return self._more(like, self._widens) if into is None or into.wide != self._widens else into

    async def round(self, total: Block, into: Block) -> None:
        await self._issue(Kind.ROUND, block=total, into=into)

    async def rounded(self, total: Block) -> Block:
        if not total.wide:
            return total
        into = self._more(total, False)
        await self.copy(total, into)
        return into

    def send(self, frame: int, dest: int, tag: int = 0) -> Awaited:
        return self._issue(Kind.SEND, frame=frame, peer=dest, tag=tag, inside=self.on_same_node(dest))

    def recv(self, source: int, like: Block, tag: int = 0) -> Awaited:
        frame = self._frame()
        near = self.on_same_node(source)
        return self._issue(Kind.RECV, block=like, frame=frame, peer=source, tag=tag, inside=near, value=frame)

    # -- around them

    def block(
        self,
        buffer: int,
        start: int,
        n: int,
        wide: bool = False,
        inner: tuple[int, ...] = (),
        within: tuple[Any, ...] = (),
    ) -> Block:
        """The elements of a buffer from ``start`` on."""
        key = buffer, start, n, wide, inner, within
        found = self._blocks.get(key)
        if found is None:
            found = self._blocks[key] = Block(self, *key)
        return found

    def scratch(self, like: Block, times: int = 1) -> Block:
        return self._more(like, False, times)

    def chunks(self, block: Block) -> list[Block]:
        n = len(block)
        step = chunk_step(n, self.chunk)
        return self.pieces(block, -(-n // step)) if block.inner and n else self._equal(block, step)

    def pieces(self, block: Block, count: int) -> list[Block]:
        return [block[a:b] for a, b in pairwise(planes.ends(len(block), count, prod(block.inner)))]

    def _equal(self, block: Block, step: int) -> list[Block]:
        begins = range(0, len(block), step)
        if not self._shaped:
            return [block[i : i + step] for i in begins]
        return [
            self.block(
                block.buffer,
                block.start + i,
                min(step, len(block) - i),
                block.wide,
                within=(block, number, len(begins), planes.most(len(block), step)),
            )
            for number, i in enumerate(begins)
        ]

    def start(self, coroutine: Coroutine) -> Task:
        task = Task(coroutine, self._frontier)
        self._unfinished += 1
        self._ready.append(task)
        return task

    async def all(self, coroutines: Iterable[Coroutine], limit: int = 8) -> None:
        window: deque[Task] = deque()
        for coroutine in coroutines:
            if len(window) == limit:
                await window.popleft()
            window.append(self.start(coroutine))
        while window:
            await window.popleft()

    # -- recording

    def run(self, coroutine: Coroutine) -> None:
        """Run an algorithm, and everything that it starts, to the end."""
        self.start(coroutine)
        while self._ready or self._issued:
            while self._ready:
                self._step(self._ready.popleft())
            if self._issued:
                self._done(self._issued.popleft())
        if self._unfinished:
            raise DeadlockError(f"{self._unfinished} coroutines wait for events that no rank causes")

    def schedule(self) -> Schedule:
        """The schedule of all operations traced so far."""
        n = len(self._ops)
        ops = np.zeros(n, OP)
        if n:
            names = ("kind", "block", "into", *_FIELDS)
            for name, column in zip(names, np.array(self._ops, np.int32).T, strict=True):
                ops[name] = column
        ops["n_deps"] = np.fromiter(map(len, self._dependencies), np.int32, n)
        earlier = np.fromiter((k for some in self._dependencies for k in some), np.int32)
        later = np.repeat(np.arange(n, dtype=np.int32), ops["n_deps"])
        ops["first"] = np.cumsum(np.bincount(earlier, minlength=n)) - np.bincount(earlier, minlength=n)
        blocks = np.array([b.noted() for b in self._used], BLOCK)
        scratch = np.array(self._scratch, SCRATCH)
        order = np.argsort(earlier, kind="stable")
        return Schedule(
            self.rank,
            self.size,
            ops,
            blocks,
            later[order],
            self._n_buffers,
            scratch,
            self._n_frames,
            self._n_tags,
        )

    @property
    def _frontier(self) -> frozenset[int]:
        """Operations that the running coroutine has awaited."""
        return self._now.frontier if self._now is not None else frozenset()

    def _step(self, task: Task) -> None:
        self._now = task
        try:
            awaited = task.coroutine.send(None)
        except StopIteration as stop:
            self._unfinished -= 1
            task.value = stop.value
            self._done(task)
            return
        awaited.waiters.append(task)
        if awaited.done:
            self._wake(awaited)

    def _done(self, awaited: Awaited) -> None:
        awaited.done = True
        self._wake(awaited)

    def _wake(self, awaited: Awaited) -> None:
        for task in awaited.waiters:
            task.has_awaited(awaited)
            self._ready.append(task)
        awaited.waiters.clear()

    def _issue(
        self,
        kind: Kind,
        block: Block | None = None,
        into: Block | None = None,
        value: Any = None,
        **fields: int,
    ) -> Awaited:
        """Add an operation with these `_FIELDS`; ``value``: what awaiting it gives."""
        before, row = self._frontier, {**_FIELDS, **fields}
        peer, tag = row["peer"], row["tag"]
        if peer != NONE and (last := self._last_with_tag(kind, peer, tag)) != NONE:
            before |= {last}
        op = Awaited(before, frozenset((len(self._ops),)), value)
        self._ops.append((kind, self._number(block), self._number(into), *row.values()))
        self._dependencies.append(before)
        self._n_tags = max(self._n_tags, tag + 1)
        self._issued.append(op)
        return op

    def _last_with_tag(self, kind: Kind, peer: int, tag: int) -> int:
        """The last message to or from a rank whose tag maps to the same tag of the call; or none."""
        key = kind, peer, tag % self.n_tags
        last, op = self._last.get(key, (tag, NONE))
        self._last[key] = tag, len(self._ops)
        return op if last != tag else NONE

    def _number(self, block: Block | None) -> int:
        if block is None:
            return NONE
        if block.number < 0:
            if block.within:
                self._number(block.within[0])
            block.number = len(self._used)
            self._used.append(block)
        return block.number

    def _frame(self) -> int:
        self._n_frames += 1
        return self._n_frames - 1

    def _more(self, like: Block, wide: bool, times: int = 1) -> Block:
        n = times * len(like)
        fits = times == 1 or prod(like.inner) <= planes.largest_plane(n, chunk_step(n, self.chunk))
        self._scratch.append((n, wide))
        return self.block(self._n_buffers + len(self._scratch) - 1, 0, n, wide, like.inner if fits else ())


def trace(
    algorithm: Callable[[Tracer, list[Block], list[Block]], Coroutine],
    rank: int,
    size: int,
    sends: Sequence[int],
    recvs: Sequence[int],
    chunk: int,
    shapes: Sequence[tuple[int, ...]] = (),
    **options: Any,
) -> Schedule:
    """The schedule of an algorithm on one rank.

    Parameters
    ----------
    algorithm : coroutine function
        ``algorithm(rt, send, recv)``, with lists of blocks.
    rank, size : int
    sends, recvs : sequence of int
        Elements of the caller's blocks, whose buffers are numbered in this order.
    chunk : int
        Elements of a chunk, rounded up to a multiple of 1024.
    shapes : sequence of tuple of int
        For each buffer the last one or two dimensions of its shape, empty if it has none; or no entries.
    **options
        See `Options`.
    """
    rt = Tracer(rank, size, len(sends) + len(recvs), chunk, Options(**options))
    sizes = (*sends, *recvs)
    shapes = shapes or [()] * len(sizes)
    blocks = [rt.block(i, 0, n, inner=inner) for i, (n, inner) in enumerate(zip(sizes, shapes, strict=True))]
    with _no_collection():
        rt.run(algorithm(rt, blocks[: len(sends)], blocks[len(sends) :]))
        return rt.schedule()


@contextmanager
def _no_collection() -> Iterator[None]:
    """Turn garbage collection off: it would take half of the time on many small objects, all still in use."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
