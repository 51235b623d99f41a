"""The operations that algorithms call."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Iterable
from typing import Any, Protocol

from compcoll.schedule.block import Block

__all__ = ["Runtime"]


class Runtime(Protocol):
    """Operations of an algorithm.

    A frame is a number. `send`, `recv` and `start` return at once, and their results may be awaited; all
    other operations are awaited.

    Attributes
    ----------
    rank, size : int
    chunk : int
        Elements of a chunk.
    window : int
        Chunks of a message in flight at once.
    n_tags : int
        Number of the call's tags. Messages with larger tags reuse them, each when the previous message has
        completed.
    nodes : tuple of int
        The node of each rank; empty if all are on one, or if nodes do not matter.
    owner_exact : bool
        True if the owner of a block keeps its exact values while others have decoded ones.
    inside_exact : bool
        True if frames for only ranks of the same node carry exact values.
    """

    rank: int
    size: int
    chunk: int
    window: int
    n_tags: int
    nodes: tuple[int, ...]
    owner_exact: bool
    inside_exact: bool

    async def encode(self, block: Block, into: Block | None = None, inside: bool = False) -> int:
        """Encode a block; ``inside``: only for ranks of this node, by the codec for these.

        If the codec also returns the decoded values, they overwrite ``into``, which may be the block itself
        (see `write_decoded`).
        """
        ...

    async def write_decoded(self, frame: int, block: Block, into: Block, idle: bool = True) -> None:
        """Write the values that a frame decodes to, or with ``owner_exact`` its block's own, to ``into``.

        ``idle``: when there is nothing else to do.
        """

    async def decode(self, frame: int, into: Block) -> None:
        """Overwrite a block with the frame's values."""

    async def decode_add(self, frame: int, into: Block) -> None:
        """Add the frame's values to an accumulator."""

    async def add(self, frame: int, other: int, like: Block) -> int:
        """Add two frames of a block like ``like``, without decoding if the codec can."""
        ...

    async def copy(self, block: Block, into: Block, idle: bool = False) -> None:
        """Overwrite a block with another one's values; ``idle``: when there is nothing else to do."""

    async def round(self, total: Block, into: Block) -> None:
        """Overwrite a block with an accumulator's values, rounded once; they are a result."""

    async def rounded(self, total: Block) -> Block:
        """Convert an accumulator to a block's type."""
        ...

    def accumulator(self, like: Block, into: Block | None = None) -> Block:
        """Get memory for sums, float32 for 16-bit floats; ``into`` if that fits."""
        ...

    def send(self, frame: int, dest: int, tag: int = 0) -> Awaitable[Any]:
        """Start to send; done when the frame's memory is free again."""
        ...

    def recv(self, source: int, like: Block, tag: int = 0) -> Awaitable[int]:
        """Start to receive a frame of a block like ``like``; awaiting the result returns the frame.

        No two messages from one rank to another have the same tag: they may overtake each other.
        """
        ...

    def on_same_node(self, rank: int) -> bool:
        """True if another rank is on this rank's node, and there are several nodes."""
        ...

    def scratch(self, like: Block, times: int = 1) -> Block:
        """Allocate consecutive memory for a number of blocks with equally many elements."""
        ...

    def chunks(self, block: Block) -> list[Block]:
        """Cut a block into its chunks; blocks of equal length have equally many chunks on all ranks.

        Chunks have equal lengths if the block has no shape, else they are groups of planes.
        """
        ...

    def pieces(self, block: Block, count: int) -> list[Block]:
        """Cut a block that has a shape into ``count`` chunks."""
        ...

    def start(self, coroutine: Coroutine) -> Awaitable[Any]:
        """Run a coroutine beside the others; the call does not end before it."""
        ...

    async def all(self, coroutines: Iterable[Coroutine], limit: int = 8) -> None:
        """Run coroutines in order, at most ``limit`` of them at a time."""
