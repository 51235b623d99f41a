"""Chunks of a block that has a shape: whole multiples of four planes.

A codec that uses neighbours in 2 or 3 dimensions, such as zfp with blocks of 4x4 or 4x4x4, does far better on
an array's own shape than on its values in a row. Only the rank that sends a block knows its shape: another
rank may receive an array of shape (64, 128, 128) into a column of something else. But both know the number of
values, and from it the number of chunks and the largest possible size of a chunk (`most`). Within these
limits the sender is free to move the ends of its chunks.

A *plane* has all values with one index of the first dimension: a row of two dimensions or a plane of three.
The sender distributes groups of four planes evenly over the chunks; the rest after the last group belongs to
its chunk. If there are fewer groups than chunks, some chunks are empty, and are sent as frames without
values. A frame's header has the chunk's shape, so that the receiver of chunk i can compute its position,
whatever else has arrived: the last dimensions give the size of a plane, and with it the ends of chunk i at
every sender. A frame of another size is damaged. Frames of one dimension belong to chunks of equal length, as
without a shape.

``csrc/engine/schedule.h`` has `ends` for compiled code.
"""

from __future__ import annotations

__all__ = ["GROUP", "ends", "largest_plane", "most"]

#: Planes that stay together: the edge of a codec's block.
GROUP = 4
#: Elements of a message that may always be one chunk; and the largest part of a large message in a chunk, a
#: sixteenth.
_WHOLE, _LARGE = 1 << 18, 1 << 21


def most(n: int, step: int) -> int:
    """Largest possible chunk of ``n`` elements, whose chunks have ``step`` elements without a shape."""
    return min(n, max(4 * step, _WHOLE, min(n // 16, _LARGE)))


def largest_plane(n: int, step: int) -> int:
    """Largest plane, in elements, for which no chunk is larger than `most`."""
    room = most(n, step)
    return n if room == n else room // (2 * GROUP)


def ends(n: int, count: int, plane: int) -> list[int]:
    """Bounds of ``count`` chunks of ``n`` elements in planes of ``plane``: count + 1 numbers."""
    group = GROUP * plane
    groups = max(n // group, 1)
    begun = [-(-i * groups // count) for i in range(count + 1)]
    return [n if k == groups else k * group for k in begun]
