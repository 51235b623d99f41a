"""Chunks of a block that has a shape: whole multiples of four planes.

A codec that looks at neighbours in 2 or 3 dimensions, as zfp does in blocks of 4x4 or 4x4x4, does far better
on an array's own shape than on its values in a row. Only the rank that sends a block knows its shape: what
one rank calls (64, 128, 128), another may receive into a column of something else. But both know how many
values there are, and what follows from that alone is common knowledge: how many chunks there are, and how
large the largest may become (`most`). In between, the sender is free to move the ends of its chunks.

A *plane* is what lies behind one index of the first dimension, a row of two dimensions or a plane of three.
The sender deals out groups of four planes to the chunks evenly, the rest behind the last group to the same
chunk; where there are fewer groups than chunks, some chunks are empty, and go out as frames of no values. A
frame's header has the chunk's shape, so that the receiver of chunk i of so many finds out by itself where
it belongs, whatever else has arrived: the last dimensions say how large a plane is, and with it where every
sender puts the ends of chunk i. A frame of another size than that is damaged. Frames of one dimension are
those of chunks of equal length, as ever.

``csrc/engine/schedule.h`` has `ends` for compiled code.
"""

from __future__ import annotations

__all__ = ["GROUP", "ends", "largest_plane", "most"]

#: Planes that stay together: the edge of a codec's block.
GROUP = 4
#: Elements of a message that may come in one chunk, whatever its chunks are otherwise; and in the chunks of a
#: large one, a sixteenth of it at most.
_WHOLE, _LARGE = 1 << 18, 1 << 21


def most(n: int, step: int) -> int:
    """Elements of the largest chunk that may come of ``n``, whose chunks are of ``step`` without a shape."""
    return min(n, max(4 * step, _WHOLE, min(n // 16, _LARGE)))


def largest_plane(n: int, step: int) -> int:
    """Elements of the largest plane of which no chunk is larger than `most`."""
    room = most(n, step)
    return n if room == n else room // (2 * GROUP)


def ends(n: int, count: int, plane: int) -> list[int]:
    """Bounds of ``count`` chunks of ``n`` elements in planes of ``plane``: count + 1 numbers."""
    group = GROUP * plane
    groups = max(n // group, 1)
    begun = [-(-i * groups // count) for i in range(count + 1)]
    return [n if k == groups else k * group for k in begun]
