"""Blocks that the tracing runtime passes to algorithms."""

from __future__ import annotations

from math import prod
from typing import Any

from compcoll.schedule import planes
from compcoll.schedule.graph import NONE

__all__ = ["Block"]


class Block:
    """Elements of a buffer, the caller's or scratch memory, with a length and slices.

    Each block is unique, so blocks are compared by identity.

    Attributes
    ----------
    inner : tuple of int
        The last one or two dimensions of its shape, if it has one; equal for its slices.
    within : tuple
        ``(block, i, count, most)`` for chunk i of ``count`` chunks of a block, whose frames may have the
        shape of the sender's block and then up to ``most`` elements. Empty if frames fit exactly.
    """

    __slots__ = ("buffer", "inner", "n", "number", "start", "tracer", "wide", "within")

    def __init__(
        self,
        tracer: Any,
        buffer: int,
        start: int,
        n: int,
        wide: bool,
        inner: tuple[int, ...] = (),
        within: tuple[Any, ...] = (),
    ):
        self.tracer, self.buffer, self.start, self.n, self.wide = tracer, buffer, start, n, wide
        self.inner, self.within = inner, within
        self.number = NONE  # in the schedule, once it is used

    @property
    def unit(self) -> int:
        """Elements of a group of planes; chunks are multiples of it. 0 without a shape."""
        return planes.GROUP * prod(self.inner) if self.inner else 0

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, part: slice) -> Block:
        begin, end, step = part.indices(self.n)
        if step != 1:
            raise ValueError(f"a step of {step} leaves no contiguous block")
        n, plane = max(end - begin, 0), prod(self.inner)
        inner = () if begin % plane or n % plane else self.inner
        return self.tracer.block(self.buffer, self.start + begin, n, self.wide, inner)

    def noted(self) -> tuple[int, ...]:
        """The block as a row of a schedule, a `compcoll.schedule.graph.BLOCK`."""
        whole, i, count, most = self.within or (None, 0, 1, self.n)
        plane, row = (prod(self.inner), self.inner[-1]) if self.inner else (0, 0)
        of = NONE if whole is None else whole.number
        return self.buffer, self.wide, self.start, self.n, most, plane, row, of, i, count
