"""Allgather(v): every block is compressed once, by its owner, and forwarded as it is.

The ring (Chan et al., "Collective communication: theory, practice, and experience", 2007) is for large
blocks; recursive doubling is for small ones and needs few rounds, if P is a power of two. The owner also
takes the decoded values of its own frames, so that all ranks hold the same bits.
"""

from __future__ import annotations

from itertools import zip_longest

from compcoll.algorithms.groups import others, radices
from compcoll.schedule.runtime import Runtime


async def ring_allgather(rt: Runtime, mine, blocks: list) -> None:
    """Give every rank ``mine`` as its ``blocks[rank]``."""
    columns = list(zip_longest(*map(rt.chunks, blocks)))
    own: list = [*rt.chunks(mine)]
    own += [None] * (len(columns) - len(own))
    await rt.all(ring_column(rt, own[tag], column, tag) for tag, column in enumerate(columns))


async def ring_column(rt: Runtime, mine, column, tag: int, frame=None) -> None:
    """Send one chunk of every rank round the ring; ``None`` if a rank has none.

    If ``mine`` was decoded from a frame, that frame is forwarded.
    """
    left, right = (rt.rank - 1) % rt.size, (rt.rank + 1) % rt.size
    if mine is not None and frame is None:
        own = column[rt.rank]
        frame = await rt.encode(mine, own)
        rt.start(rt.write_decoded(frame, mine, own))
    for hop in range(1, rt.size):
        chunk = column[(rt.rank - hop) % rt.size]
        arriving = rt.recv(left, chunk, tag) if chunk is not None else None
        sent = rt.send(frame, right, tag) if frame is not None else None
        frame = await arriving if arriving is not None else None
        if frame is not None:
            rt.start(rt.decode(frame, chunk))
        if sent is not None:
            await sent


async def recursive_doubling_allgather(rt: Runtime, mine, blocks: list) -> None:
    """Give every rank ``mine`` as its ``blocks[rank]``, where the number of ranks is a power of two."""
    if rt.size & (rt.size - 1):
        raise ValueError(f"recursive doubling needs a power of two of ranks, not {rt.size}")
    await gather_in_rounds(rt, mine, blocks)


async def gather_in_rounds(rt: Runtime, mine, blocks: list, first_tag: int = 0) -> None:
    """Give every rank ``mine`` as its ``blocks[rank]``; groups exchange all that they have so far."""
    most = max(len(rt.chunks(block)) for block in blocks)
    held: dict[int, list] = {rt.rank: []}
    for chunk, into in zip(rt.chunks(mine), rt.chunks(blocks[rt.rank]), strict=True):
        frame = await rt.encode(chunk, into)
        held[rt.rank].append(frame)
        rt.start(rt.write_decoded(frame, chunk, into))
    stride = 1
    for radix in reversed(radices(rt.size)):
        first = first_tag - rt.rank // stride * stride * most  # so that tags count the owners in a group
        place = rt.rank // stride % radix
        peers = [(other - place) * stride for other in others(place, radix)]
        arriving = {
            owner + away: [
                rt.recv(rt.rank + away, chunk, first + owner * most + i)
                for i, chunk in enumerate(rt.chunks(blocks[owner + away]))
            ]
            for away in peers
            for owner in held
        }
        sent = [
            rt.send(frame, rt.rank + away, first + owner * most + i)
            for away in peers
            for owner, frames in held.items()
            for i, frame in enumerate(frames)
        ]
        for owner, futures in arriving.items():
            held[owner] = [await future for future in futures]
            for frame, chunk in zip(held[owner], rt.chunks(blocks[owner]), strict=True):
                rt.start(rt.decode(frame, chunk))
        for future in sent:
            await future
        stride *= radix
