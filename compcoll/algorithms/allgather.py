"""Allgather(v): every block is compressed once, by its owner, and forwarded as it is.

The ring (Chan et al., "Collective communication: theory, practice, and experience", 2007) moves large
blocks; recursive doubling needs log2(P) rounds where P is a power of two, for small ones. The owner
takes the values of its own frames too, so that all ranks hold the same bits.
"""

from __future__ import annotations

from itertools import zip_longest


async def ring_allgather(rt, mine, blocks: list, owner_exact: bool = False) -> None:
    """``mine`` arrives as ``blocks[rank]`` of every rank."""
    columns = list(zip_longest(*map(rt.chunks, blocks)))
    own = rt.chunks(mine)
    own += [None] * (len(columns) - len(own))
    await rt.all(ring_column(rt, own[tag], column, tag, owner_exact) for tag, column in enumerate(columns))


async def ring_column(
    rt, mine, column, tag: int, owner_exact: bool = False, carried: float = 0.0, frame=None
) -> None:
    """One chunk of every rank goes round; ``None`` where a rank has none.

    ``mine`` has the absolute error ``carried``; where it was decoded from a frame, that is forwarded.
    """
    left, right = (rt.rank - 1) % rt.size, (rt.rank + 1) % rt.size
    if mine is not None and frame is None:
        own = column[rt.rank]
        frame = await rt.encode(mine, carried, None if owner_exact else own)
        rt.start(settle(rt, frame, mine, own, owner_exact))
    for hop in range(1, rt.size):
        chunk = column[(rt.rank - hop) % rt.size]
        arriving = rt.recv(left, chunk, tag) if chunk is not None else None
        sent = rt.send(frame, right, tag) if frame is not None else None
        frame = await arriving if arriving is not None else None
        if frame is not None:
            rt.start(rt.decode(frame, chunk))
        if sent is not None:
            await sent


async def settle(rt, frame, mine, into, owner_exact: bool) -> None:
    """Give the owner the values that everybody else decodes, unless its encoder has done so."""
    if frame.settled:
        return
    if frame.bound and not owner_exact:
        await rt.decode(frame, into)
    else:
        await rt.copy(mine, into)


async def recursive_doubling_allgather(rt, mine, blocks: list, owner_exact: bool = False) -> None:
    """``mine`` arrives as ``blocks[rank]`` of every rank; the number of ranks is a power of two."""
    if rt.size & (rt.size - 1):
        raise ValueError(f"recursive doubling needs a power of two of ranks, not {rt.size}")
    held: dict[int, list] = {rt.rank: []}
    for chunk, into in zip(rt.chunks(mine), rt.chunks(blocks[rt.rank]), strict=True):
        frame = await rt.encode(chunk, 0.0, None if owner_exact else into)
        held[rt.rank].append(frame)
        rt.start(settle(rt, frame, chunk, into, owner_exact))
    distance = 1
    while distance < rt.size:
        peer = rt.rank ^ distance
        theirs = [owner ^ distance for owner in held]
        arriving = {
            owner: [rt.recv(peer, chunk, owner ^ peer) for chunk in rt.chunks(blocks[owner])]
            for owner in theirs
        }
        sent = [rt.send(frame, peer, owner ^ rt.rank) for owner, frames in held.items() for frame in frames]
        for owner, futures in arriving.items():
            held[owner] = [await future for future in futures]
            for frame, chunk in zip(held[owner], rt.chunks(blocks[owner]), strict=True):
                rt.start(rt.decode(frame, chunk))
        for future in sent:
            await future
        distance *= 2
